//! Messages to the text and the ids that a model was trained on, through the template in its file.
//!
//! Templates are Jinja in Hugging Face's dialect, run by `minijinja` with block trimming on, Python's string methods, loop controls and
//! the functions that templates expect. The clock is an input. [`render_to_ids`] keeps what a user wrote text, whatever it looks like.
//!
//! Templates come with models and are not trusted: steps and output are bounded. A template that doubles a string in a loop can still
//! take memory before either bound stops it.

mod error;
mod ids;
mod python;
mod template;

pub use error::ChatError;
pub use ids::render_to_ids;
pub use template::{ChatContent, ChatMessage, ChatPart, ChatTemplate};
