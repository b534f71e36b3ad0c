//! Adapters: parse, bind to a base, apply at run time, never merged.
//!
//! An adapter goes through three types. [`peft::PeftLora`] is what the files say; [`Adapter`] is its normal form, in the base's own names
//! and row order, with an identity; [`BoundAdapter`] is ready for one base. A [`Stack`] of bound adapters hands out one [`TensorStack`] per
//! tensor, which adds `weight * scale * B(A x)` to the base's product, adapter after adapter.
//!
//! What an adapter's configuration says is applied exactly or refused by name (`docs/adapters.md`). The crate never sees a base's bytes: it
//! knows names and shapes ([`BaseShape`]), so nothing here can change a base.
//!
//! ```
//! use std::{collections::BTreeMap, sync::Arc};
//!
//! use slm_format::Encoding;
//! use slm_manifest::{BaseId, config::Architecture};
//! use slm_overlay::{Adapter, BaseShape, Factor, Gates, LoraModule, Stack};
//! use slm_quant::{Inline, Kernels};
//!
//! let ones = |rows, cols, n: usize| Factor::new("ones", Encoding::F32, rows, cols, 1f32.to_le_bytes().repeat(n).into());
//! let module = LoraModule { target: "blk.0.ffn_up.weight".into(), scale: 16.0 / 8.0, a: ones(8, 4, 32)?, b: ones(4, 8, 32)? };
//! let adapter = Arc::new(Adapter::lora(vec![module])?);
//!
//! let base = BaseShape {
//!     architecture: Architecture::Llama, n_heads: 1, n_kv_heads: 1, head_dim: 4, n_layers: 1, tied_embeddings: true,
//!     tensors: BTreeMap::from([("blk.0.ffn_up.weight".to_owned(), (4, 4))]), weights: None,
//! };
//! let base_id = BaseId::of_canonical(b"an example");
//! let stack = Stack::new(base_id, vec![(Arc::new(adapter.bind(base_id, &base)?), 1.0)])?;
//!
//! let mut y = [0.0; 4]; // the base's product
//! stack.for_tensor("blk.0.ffn_up.weight").apply(&Kernels::detect(), &Inline, &mut y, &[1.0; 4], &mut Vec::new(), 1, Gates::NONE);
//! assert_eq!(y, [64.0; 4]); // 2 * (eight times four)
//! # Ok::<(), slm_overlay::OverlayError>(())
//! ```

pub mod binary;
pub mod delta;
pub mod gguf;
pub mod peft;

mod adapter;
mod bind;
mod container;
mod error;
mod factor;
mod kind;
mod materialize;
mod section;
mod shape;
mod stack;

pub use adapter::{Adapter, SourceDigest};
pub use bind::BoundAdapter;
pub use error::{Feature, OverlayError};
pub use factor::Factor;
pub use kind::{
    AdapterKind, Delta, DenseDelta, Dora, Ia3, Loha, Lokr, LokrFactor, Lora, LoraModule, Module,
    RowOrder, Side, SparseDelta, Vera,
};
pub use materialize::{MaterializeError, Materialized};
pub use shape::{BaseShape, BaseWeights, EMBEDDING, HEAD};
pub use stack::{Gates, LoneDowns, LoneScratch, Stack, TensorStack};
