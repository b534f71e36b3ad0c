//! How near to the machine's limits each race came.

use slm_format::Limits as ParserLimits;
use slm_format::gguf::Gguf;

use super::machine::Limits;
use super::race::Row;
use super::table::{Table, number};
use crate::problems::Problems;

/// What one token needs of a file.
#[derive(Debug, PartialEq, Eq)]
struct Needs {
    /// Weight bytes that a decoded token reads: every tensor once, but of an embedding that is not also the output head only a row, not counted.
    decode_bytes: u64,
    /// Multiplications of a prompt's token: the matrices of the layers. The head is needed for the last token only; attention is not counted.
    prefill_macs: u64,
}

/// The share of reads in decode and of products in prefill that the machine allows.
pub(crate) fn table(rows: &[Row], limits: &Limits) -> String {
    let mut table = Table::new(&[
        "file",
        "threads",
        "what",
        "a token needs",
        "slm",
        "llama.cpp",
        "the machine",
        "slm / machine",
    ]);
    for row in rows {
        let needs = match needs(row) {
            Ok(needs) => needs,
            Err(problems) => {
                problems.print();
                continue;
            }
        };
        let read = limits.read(row.threads, needs.decode_bytes);
        let int8 = limits.int8(row.threads);
        let lines = [
            ("decode", "MB", "GB/s", needs.decode_bytes, &row.decode, read.map(|read| read.1)),
            ("prefill", "MMAC", "GMAC/s", needs.prefill_macs, &row.prefill, int8),
        ];
        for (what, unit, per_second, need, paired, limit) in lines {
            let giga = |spread: Option<super::stats::Spread>| {
                spread.map(|spread| spread.median * need as f64 / 1e9)
            };
            let (ours, theirs) = (giga(paired.ours()), giga(paired.theirs()));
            let shown = |rate: Option<f64>| {
                rate.map_or_else(|| "none".to_owned(), |r| format!("{} {per_second}", number(r)))
            };
            let share =
                ours.zip(limit).map(|(ours, limit)| format!("{:.0} %", ours / limit * 100.0));
            table.row(&[
                row.part.model().1.to_owned(),
                row.threads.to_string(),
                what.to_owned(),
                format!("{} {unit}", number(need as f64 / 1e6)),
                shown(ours),
                shown(theirs),
                shown(limit),
                share.unwrap_or_else(|| "none".to_owned()),
            ]);
        }
    }
    table.finish()
}

fn needs(row: &Row) -> Result<Needs, Problems> {
    let bytes = std::fs::read(&row.model)?;
    let gguf = Gguf::parse(&bytes, &ParserLimits::STANDARD)
        .map_err(|error| Problems::one(format!("bench: {}: {error}", row.model.display())))?;
    let tensors = gguf.tensors().iter();
    Ok(count(tensors.map(|tensor| (tensor.name, &tensor.shape[..], tensor.data.len() as u64))))
}

/// From each tensor's name, shape and bytes.
fn count<'a>(tensors: impl Iterator<Item = (&'a str, &'a [u64], u64)> + Clone) -> Needs {
    let has_head = tensors.clone().any(|(name, ..)| name == "output.weight");
    let mut needs = Needs { decode_bytes: 0, prefill_macs: 0 };
    for (name, shape, bytes) in tensors {
        if name != "token_embd.weight" || !has_head {
            needs.decode_bytes += bytes;
        }
        if name.starts_with("blk.") && shape.len() == 2 {
            needs.prefill_macs += shape[0] * shape[1];
        }
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tied_embedding_is_read_and_another_is_not() {
        let matrix: &[u64] = &[32, 64];
        let tied = [
            ("token_embd.weight", matrix, 1000),
            ("blk.0.attn_q.weight", matrix, 100),
            ("blk.0.attn_norm.weight", &[32], 10),
        ];
        let expected = Needs { decode_bytes: 1110, prefill_macs: 2048 };
        assert_eq!(count(tied.into_iter()), expected);
        let head = ("output.weight", matrix, 1);
        let untied = tied.into_iter().chain([head]);
        assert_eq!(count(untied), Needs { decode_bytes: 111, prefill_macs: 2048 });
    }
}
