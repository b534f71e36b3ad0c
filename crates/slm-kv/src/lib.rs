//! Paged key/value cache keyed by execution identity.
//!
//! A [`KvCache`] holds the K and V rows of one sequence under one [`slm_manifest::ExecutionId`]. Every page carries that identity and every
//! append names it, so that rows made under other weights, another stack or another profile are a typed error and never wrong text.
//! Attention reads rows as spans that lie together in memory; widths may differ from layer to layer.
//!
//! It does not know tokens, layers' arithmetic or clocks.
//!
//! ```
//! use slm_kv::{KvCache, KvGeometry, KvRows};
//! use slm_manifest::{ExecutionId, KvType};
//!
//! let execution = ExecutionId::of_canonical(b"an example");
//! let geometry = KvGeometry::new(vec![2], 32, 100).unwrap();
//! let mut cache = KvCache::new(execution, geometry, KvType::F32).unwrap();
//! cache.append(execution, 0, &[1.0, 2.0], &[3.0, 4.0]).unwrap();
//! cache.commit(1).unwrap();
//! let span = cache.spans(0, 0..1).unwrap().next().unwrap();
//! assert_eq!(span.k, KvRows::F32(&[1.0, 2.0]));
//!
//! let other = ExecutionId::of_canonical(b"another stack");
//! assert!(cache.append(other, 0, &[1.0, 2.0], &[3.0, 4.0]).is_err());
//! ```

mod cache;
mod error;
mod geometry;
mod page;

pub use cache::{KvCache, KvSpan, KvSpans};
pub use error::KvError;
pub use geometry::KvGeometry;
pub use page::KvRows;
