//! Every tensor read once: its scales checked, its bytes hashed in ggml order, and, where a base is to stand in memory, copied.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use slm_format::{ContentHash, ContentHasher};
use slm_quant::layout::{self, AlignedBytes, STRIP_ROWS};
use slm_quant::{Executor, Layout, QMatrix, QuantError};

use crate::error::RuntimeError;
use crate::load::source::{SourceTensor, TensorBytes};
use crate::parallel::parallel_for;

/// Rows that are brought into another order at a time, so that the piece stays in the cache.
const ROWS_AT_A_TIME: usize = 8 * STRIP_ROWS;
/// Bytes of a file after which it is told that they are not needed any more.
const READ_AT_A_TIME: usize = 4 << 20;

/// Checks every scale and hashes every tensor where it stands.
pub(crate) fn in_place(
    tensors: &[SourceTensor],
    file: &[u8],
    exec: &dyn Executor,
) -> Result<Vec<ContentHash>, RuntimeError> {
    parallel_for(exec, tensors.len(), &|at| {
        examine(&tensors[at], tensors[at].bytes.of(file), None, &|_| {}).map_err(RuntimeError::from)
    })
    .into_iter()
    .collect()
}

/// Copies every tensor into one piece of memory, matrices with their rows interleaved where there is such a layout, and changes `tensors` to
/// stand there. What is checked and hashed is the copy: whoever writes to the file meanwhile changes nothing that was found good.
///
/// `release` is told the ranges of the file that were copied, as soon as they were: an embedding table may be most of a file.
pub(crate) fn into_memory(
    tensors: &mut [SourceTensor],
    file: &[u8],
    exec: &dyn Executor,
    release: &(dyn Fn(Range<usize>) + Sync),
) -> Result<(AlignedBytes, Vec<ContentHash>), RuntimeError> {
    // One after the other as a pass reads them: a matrix that begins where the last one ended is no new stream to the memory.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&at| reading_order(&tensors[at].name));
    let mut end = 0usize;
    let mut places = vec![0..0; tensors.len()];
    for &at in &order {
        let len = tensors[at].bytes.of(file).len();
        places[at] = end..end + len;
        end = (end + len).next_multiple_of(64);
    }
    let mut memory = AlignedBytes::zeroed(end);
    let mut slots: Vec<_> = tensors.iter().map(|_| Mutex::new(&mut [][..])).collect();
    let mut rest = &mut memory[..];
    for &at in &order {
        let len = places[at].len();
        let (slot, later) = rest.split_at_mut(len.next_multiple_of(64).min(rest.len()));
        rest = later;
        slots[at] = Mutex::new(&mut slot[..len]);
    }
    let sources: &[SourceTensor] = tensors;
    let contents = parallel_for(exec, sources.len(), &|at| {
        let tensor = &sources[at];
        let mut slot = slots[at].lock().unwrap_or_else(PoisonError::into_inner);
        let copied = |range: Range<usize>| {
            if let TensorBytes::InFile { offset, .. } = tensor.bytes {
                release(offset + range.start..offset + range.end);
            }
        };
        let content = examine(tensor, tensor.bytes.of(file), Some(&mut slot), &copied)?;
        Ok::<_, RuntimeError>(content)
    })
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    for (tensor, place) in tensors.iter_mut().zip(places) {
        if is_worth_interleaving(tensor) {
            tensor.layout = Layout::Interleaved;
        }
        tensor.bytes = TensorBytes::InFile { offset: place.start, len: place.len() };
    }
    Ok((memory, contents))
}

/// Where a tensor stands in a pass: layer after layer, and at last what is read once.
fn reading_order(name: &str) -> (u32, usize) {
    const ROLES: [&str; 9] = [
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ];
    let of_layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((layer, role)) = of_layer else { return (u32::MAX, 0) };
    let role = role.strip_suffix(".weight").unwrap_or(role);
    let role = ROLES.iter().position(|known| *known == role).unwrap_or(ROLES.len());
    (layer.parse().unwrap_or(u32::MAX), role)
}

/// The hash of a tensor that was found good before.
pub(crate) fn hash(tensor: &SourceTensor, bytes: &[u8]) -> Result<ContentHash, QuantError> {
    in_pieces(tensor, bytes, None, &mut |_, _, _| Ok(()))
}

/// A matrix of at least one strip in an encoding that has the layout.
pub(crate) fn is_worth_interleaving(tensor: &SourceTensor) -> bool {
    layout::is_interleavable(tensor.encoding) && tensor.rows_and_cols().0 >= STRIP_ROWS
}

/// Checks and hashes one tensor; `copy` gets its bytes, interleaved where that is worth it. `read` is told the ranges that are done with.
fn examine(
    tensor: &SourceTensor,
    bytes: &[u8],
    copy: Option<&mut [u8]>,
    read: &dyn Fn(Range<usize>),
) -> Result<ContentHash, QuantError> {
    let (_, cols) = tensor.rows_and_cols();
    let (mut from, mut to) = (0, 0);
    let content = in_pieces(tensor, bytes, copy, &mut |first, n_rows, rows| {
        to += rows.len();
        if to - from >= READ_AT_A_TIME {
            read(from..to);
            from = to;
        }
        let piece = QMatrix::new(tensor.encoding, n_rows, cols, rows)?;
        piece.check_scales().map_err(|error| in_whole(error, first))
    })?;
    read(from..to);
    Ok(content)
}

/// What is shown a piece of a tensor in ggml order: its first row, its rows, their bytes.
type Look<'a> = dyn FnMut(usize, usize, &[u8]) -> Result<(), QuantError> + 'a;

/// Shows a tensor to `look` piece by piece and hashes what was shown. With `copy`, the bytes are copied first, and what is shown is the copy.
fn in_pieces(
    tensor: &SourceTensor,
    bytes: &[u8],
    mut copy: Option<&mut [u8]>,
    look: &mut Look<'_>,
) -> Result<ContentHash, QuantError> {
    let (n_rows, cols) = (tensor.matrix(bytes)?.rows(), tensor.rows_and_cols().1);
    let (encoding, row_bytes) = (tensor.encoding, bytes.len() / n_rows.max(1));
    let interleave = is_worth_interleaving(tensor);
    let mut hasher = ContentHasher::new();
    if bytes.is_empty() {
        return Ok(hasher.finish());
    }
    let mut piece = vec![0; ROWS_AT_A_TIME.min(n_rows) * row_bytes];
    for (at, stored) in bytes.chunks(ROWS_AT_A_TIME * row_bytes).enumerate() {
        let n_rows = stored.len() / row_bytes;
        let mut slot =
            copy.as_mut().map(|copy| &mut copy[at * ROWS_AT_A_TIME * row_bytes..][..stored.len()]);
        let piece = &mut piece[..stored.len()];
        let rows: &[u8] = match (tensor.layout, &mut slot) {
            (Layout::RowMajor, None) => stored,
            (Layout::RowMajor, Some(slot)) if interleave => {
                piece.copy_from_slice(stored);
                layout::interleave(encoding, n_rows, cols, piece, slot)?;
                piece
            }
            (Layout::RowMajor, Some(slot)) => {
                slot.copy_from_slice(stored);
                slot
            }
            (Layout::Interleaved, None) => {
                layout::deinterleave(encoding, n_rows, cols, stored, piece)?;
                piece
            }
            (Layout::Interleaved, Some(slot)) => {
                slot.copy_from_slice(stored);
                layout::deinterleave(encoding, n_rows, cols, slot, piece)?;
                piece
            }
        };
        look(at * ROWS_AT_A_TIME, n_rows, rows)?;
        hasher.update(rows);
    }
    Ok(hasher.finish())
}

/// An error of a piece, told of the whole matrix.
fn in_whole(error: QuantError, first: usize) -> QuantError {
    match error {
        QuantError::NonFiniteScale { encoding, row, block } => {
            QuantError::NonFiniteScale { encoding, row: first + row, block }
        }
        other => other,
    }
}
