//! The bounds that every decode travels with.

/// Upper bounds on what a file may ask for. A count is compared with these *and* with the bytes that are left before it reserves memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tensors in one file.
    pub max_tensors: u64,
    /// Most metadata entries in one file.
    pub max_metadata_entries: u64,
    /// Longest string, in bytes.
    pub max_string_bytes: u64,
    /// Most elements in one metadata array.
    pub max_array_len: u64,
    /// Most bytes of one text header (safetensors JSON, manifest, configuration).
    pub max_header_bytes: u64,
    /// Most tensor dimensions.
    pub max_dims: u32,
}

impl Limits {
    /// Bounds that every model and adapter this project knows of stays far below.
    pub const STANDARD: Limits = Limits {
        max_tensors: 65_536,
        max_metadata_entries: 65_536,
        max_string_bytes: 16 << 20,
        max_array_len: 16 << 20,
        max_header_bytes: 64 << 20,
        max_dims: 4,
    };
}
