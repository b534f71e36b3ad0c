//! What makes an adapter or a stack unusable.

mod coded;
mod feature;

pub use feature::Feature;

use slm_format::Encoding;
use slm_manifest::{AdapterId, BaseId};

/// A refused adapter or stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The configuration is not JSON.
    #[error("adapter configuration: line {line}, column {column}: {reason}")]
    ConfigJson {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the JSON parser says.
        reason: String,
    },
    /// A key stands twice in one JSON object.
    #[error("adapter configuration: the key {key:?} stands twice in one object")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A field's value is not of its type or range.
    #[error("adapter configuration: {field} is {found}, expected {expected}")]
    Field {
        /// The field.
        field: String,
        /// Its value, as JSON.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A field that slm does not know has a value.
    #[error("adapter configuration: the unknown field {field:?} is {found}")]
    UnknownField {
        /// The field.
        field: String,
        /// Its value, as JSON.
        found: String,
    },
    /// An entry of a file's metadata is not what it must be.
    #[error("metadata of the file: {entry} is {found}, expected {expected}")]
    Entry {
        /// The entry.
        entry: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A GGUF file that does not say that it is an adapter.
    #[error("general.type is {found}, expected \"adapter\"")]
    FileType {
        /// What it says, quoted.
        found: String,
    },
    /// What an adapter waits for is not a sequence of token ids that the base has.
    #[error("the invocation tokens: {found}, expected {expected}")]
    Invocation {
        /// What they are.
        found: String,
        /// What they must be.
        expected: &'static str,
    },
    /// An entry of a file's metadata that slm does not know.
    #[error("metadata of the file: {of} has no entry {entry:?}, here {found}")]
    UnknownEntry {
        /// The entry.
        entry: String,
        /// Its value.
        found: String,
        /// Whose metadata they are.
        of: &'static str,
    },
    /// A known feature that slm does not apply.
    #[error("adapter configuration: {field} is {found}: {}", .feature.reason())]
    Unsupported {
        /// The feature.
        feature: Feature,
        /// The field or tensor that asks for it.
        field: String,
        /// Its value, as JSON, or its shape.
        found: String,
    },
    /// A kind of adapter that slm does not apply.
    #[error("adapters of the kind {kind:?} are not supported")]
    Kind {
        /// The kind, as the file names it.
        kind: String,
    },
    /// A pattern that is not in the regular expressions common to Python and slm.
    #[error("adapter configuration: {field}: the pattern {pattern:?} is not usable: {reason}")]
    Pattern {
        /// The field.
        field: &'static str,
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Larger than an adapter may be.
    #[error("adapter: {what} is {found}, the limit is {limit}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The largest allowed.
        limit: u64,
    },
    /// A rank that is zero or negative.
    #[error("adapter configuration: {field} is {found}, a rank is at least 1")]
    RankZero {
        /// The field, with the pattern's key where it comes from one.
        field: String,
        /// The value.
        found: i64,
    },
    /// `alpha / rank` is not a finite f32.
    #[error("{module}: the scale of alpha {alpha} and rank {rank} is not a finite number")]
    Scale {
        /// The module.
        module: String,
        /// Its alpha.
        alpha: f64,
        /// Its rank.
        rank: u32,
    },
    /// No module of the base is adapted.
    #[error("no module of the base is adapted: {reason}")]
    NoTarget {
        /// Why.
        reason: String,
    },
    /// A tensor for a module that the configuration does not target.
    #[error("{tensor}: the configuration does not target this module")]
    Untargeted {
        /// The tensor, as the file names it.
        tensor: String,
    },
    /// A targeted module has no factors, and PEFT would fill them at random.
    #[error(
        "{module} is targeted but has no factors, and init_lora_weights {init} does not leave it at zero"
    )]
    MissingModule {
        /// The module.
        module: String,
        /// The value of init_lora_weights.
        init: String,
    },
    /// A tensor of a layer that the base does not have.
    #[error("{tensor}: layer {layer} of a base of {n_layers} layers")]
    UnknownLayer {
        /// The tensor.
        tensor: String,
        /// The layer it names.
        layer: String,
        /// Layers of the base.
        n_layers: u32,
    },
    /// A tensor of a module that the base does not have.
    #[error("{tensor}: the base has no module {module}")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The module it names.
        module: String,
    },
    /// A tensor that nothing would read.
    #[error("{tensor}: not a factor of an adapter of this kind; it would be ignored")]
    UnusedTensor {
        /// The tensor.
        tensor: String,
    },
    /// An adapter that cannot stand on the embedding table or on the head.
    #[error("{tensor}: on the embedding table only plain LoRA is supported, on the head only LoRA")]
    Embedding {
        /// The tensor.
        tensor: String,
    },
    /// The file carries a copy of a base weight that is not this base's, or cannot be compared with it.
    #[error("{tensor}: a copy of a base weight: {reason}")]
    BaseCopy {
        /// The tensor.
        tensor: String,
        /// What differs.
        reason: String,
    },
    /// A factor of a module is not there.
    #[error("{module} has no {factor}")]
    MissingFactor {
        /// The module.
        module: String,
        /// The factor.
        factor: &'static str,
    },
    /// A without B.
    #[error("{module} has lora_A but no lora_B")]
    MissingB {
        /// The module.
        module: String,
    },
    /// B without A.
    #[error("{module} has lora_B but no lora_A")]
    MissingA {
        /// The module.
        module: String,
    },
    /// The factors' rank is not the configuration's.
    #[error("{tensor}: rank {found} by its shape, {expected} by the configuration")]
    Rank {
        /// The tensor.
        tensor: String,
        /// Rank by the shape.
        found: u64,
        /// Rank by the configuration, or by the other factor.
        expected: u64,
    },
    /// A shape that does not fit the base.
    #[error("{tensor}: shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost dimension first.
        found: Vec<u64>,
        /// The shape it must have.
        expected: Vec<u64>,
    },
    /// A factor of another number of dimensions than it must have.
    #[error(
        "{tensor}: shape {found:?}, expected a matrix, or a vector where the kind has one, without a zero"
    )]
    NotMatrix {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost dimension first.
        found: Vec<u64>,
    },
    /// A NaN or an infinity.
    #[error("{tensor}: element {index} is {value}")]
    NonFinite {
        /// The tensor.
        tensor: String,
        /// Index of the element in the tensor's own order.
        index: u64,
        /// The element.
        value: f32,
    },
    /// Elements that are neither F32, F16 nor BF16.
    #[error("{tensor}: elements of type {dtype}, expected F32, F16 or BF16")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: String,
    },
    /// A factor that f16 cannot hold.
    #[error("{tensor}: element {index} is {value}, beyond f16")]
    F16Range {
        /// The tensor.
        tensor: String,
        /// Index of the element.
        index: u64,
        /// The element.
        value: f32,
    },
    /// Two modules of one adapter name the same tensor.
    #[error("two modules of the adapter target {tensor}")]
    DuplicateTarget {
        /// The tensor.
        tensor: String,
    },
    /// Modules of one adapter are of different kinds.
    #[error("{tensor}: a module of kind {found} in an adapter of kind {expected}")]
    MixedKinds {
        /// The tensor of the odd one.
        tensor: String,
        /// Its kind.
        found: &'static str,
        /// The kind of the first one.
        expected: &'static str,
    },
    /// Indices of sparse elements that do not rise, or leave the matrix.
    #[error("{tensor}: index {index} at {at} does not rise, or is not below {end}")]
    SparseIndex {
        /// The tensor.
        tensor: String,
        /// Where the index stands.
        at: u64,
        /// The index.
        index: u64,
        /// Elements of the matrix.
        end: u64,
    },
    /// Something that can only be worked out from the base's weights, which are not at hand.
    #[error("{tensor}: {what} needs the weights of the base")]
    BaseWeights {
        /// The tensor.
        tensor: String,
        /// What needs them.
        what: &'static str,
    },
    /// A gain of a row that is not a finite number: the row has no length, or the magnitude is beyond f32.
    #[error("{tensor}: row {row} is multiplied by {gain}")]
    Gain {
        /// The tensor.
        tensor: String,
        /// The row, in the base's order.
        row: u64,
        /// The gain.
        gain: f32,
    },
    /// A delta that with the base's weight is not a finite number.
    #[error("{tensor}: with the delta, row {row}, column {column} is beyond f32")]
    Fused {
        /// The tensor.
        tensor: String,
        /// The row, in the base's order.
        row: u64,
        /// The column.
        column: u64,
    },
    /// A typed delta was made for a base of other names, shapes or flags.
    #[error("the delta was made for a base whose {part} is {stated}, this base's is {found}")]
    DeltaIdentity {
        /// Which part of the identity.
        part: &'static str,
        /// What the file states.
        stated: String,
        /// What the base has.
        found: String,
    },
    /// A typed delta of another version than slm reads.
    #[error("a typed delta of version {found:?}, expected {expected:?}")]
    DeltaVersion {
        /// The version in the file.
        found: String,
        /// The one that is read.
        expected: &'static str,
    },
    /// An adapter that claims tied weights has only one of the two sides.
    #[error("the adapter claims tied weights and has {found}, but not {missing}")]
    TiedHalf {
        /// The side that is there.
        found: &'static str,
        /// The side that is not.
        missing: &'static str,
    },
    /// An `.slm` file's adapter section is not one.
    #[error("adapter section: {reason}")]
    Section {
        /// What is wrong.
        reason: String,
    },
    /// An `.slm` file's adapter section is of another version than slm reads.
    #[error("adapter section: version {found}, the newest that is read is {newest}")]
    SectionVersion {
        /// The version in the file.
        found: u32,
        /// The newest that is read.
        newest: u32,
    },
    /// A stored adapter's content is not what its file claims.
    #[error("the file claims adapter {claimed}, its content is {found}")]
    Identity {
        /// The id in the file.
        claimed: AdapterId,
        /// The id of the content.
        found: AdapterId,
    },
    /// Adapters of a stack are bound to another base.
    #[error("adapter {adapter} is bound to base {found}, the stack is for {expected}")]
    BaseMismatch {
        /// The adapter.
        adapter: AdapterId,
        /// The base it is bound to.
        found: BaseId,
        /// The base of the stack.
        expected: BaseId,
    },
    /// One adapter stands twice in a stack.
    #[error("adapter {adapter} stands twice in the stack")]
    DuplicateAdapter {
        /// The adapter.
        adapter: AdapterId,
    },
    /// A weight that is not a finite number, or makes a scale that is not.
    #[error("adapter {adapter}: weight {weight} gives the scale {scale}, not a finite number")]
    Weight {
        /// The adapter.
        adapter: AdapterId,
        /// The weight.
        weight: f32,
        /// The first scale it makes that is not finite.
        scale: f32,
    },
    /// An encoding that a factor cannot have.
    #[error("a factor of {rows} rows of {cols} {encoding} elements cannot be {bytes} bytes")]
    Factor {
        /// The encoding.
        encoding: Encoding,
        /// Rows.
        rows: u64,
        /// Columns.
        cols: u64,
        /// Bytes given.
        bytes: u64,
    },
    /// An adapter for another architecture than the base's.
    #[error("an adapter for {found}, the base is {expected}")]
    Architecture {
        /// The architecture that the file names.
        found: String,
        /// The base's.
        expected: &'static str,
    },
    /// To be written: what the format has no room for.
    #[error("{tensor}: {format} has no room for {what}")]
    Export {
        /// The tensor.
        tensor: String,
        /// The format.
        format: &'static str,
        /// What does not fit.
        what: &'static str,
    },
    /// The adapter is not a GGUF file, or an entry of it is not what it must be.
    #[error(transparent)]
    Gguf(#[from] slm_format::gguf::GgufError),
    /// The GGUF file cannot be written.
    #[error(transparent)]
    GgufWrite(#[from] slm_format::gguf::GgufWriteError),
    /// The weights are not a safetensors file.
    #[error(transparent)]
    SafeTensors(#[from] slm_format::safetensors::SafeTensorsError),
    /// A binary LoRA file or its layout is not one, or does not fit.
    #[error(transparent)]
    Binary(#[from] crate::binary::BinaryError),
    /// A section of an `.slm` file is damaged.
    #[error(transparent)]
    Container(#[from] slm_format::container::ContainerError),
}
