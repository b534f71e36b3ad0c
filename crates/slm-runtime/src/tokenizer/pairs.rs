//! Which pairs merge, in which order, and the loop that merges them.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::error::TokenizerError;
use super::spec::{Algorithm, TokenizerSpec, index, merged, splits};

/// Marks a symbol that no token stands for yet; it never merges.
pub(crate) const NONE: u32 = u32::MAX;

/// Every pair that merges, ordered by its left and right token: 12 bytes a pair and 4 a token, found by binary search among the
/// pairs of one left token.
#[derive(Debug)]
pub(crate) struct PairTable {
    /// Pairs of left token `t` are `starts[t]..starts[t + 1]`.
    starts: Vec<u32>,
    rights: Vec<u32>,
    /// Order of the merge, and the token it makes.
    made: Vec<(u32, u32)>,
}

impl PairTable {
    /// The table of a checked tokenizer.
    pub(crate) fn new(spec: &TokenizerSpec) -> Result<PairTable, TokenizerError> {
        let ids = index(&spec.tokens)?;
        let mut rows: Vec<(u32, u32, u32, u32)> = Vec::new();
        match &spec.algorithm {
            Algorithm::ByteLevelBpe { merges, .. } => {
                rows.reserve_exact(merges.len());
                for (rank, &(left, right)) in (0u32..).zip(merges) {
                    rows.push((
                        left,
                        right,
                        rank,
                        merged(&spec.tokens, &ids, rank, (left, right))?,
                    ));
                }
            }
            Algorithm::SentencePieceBpe { ranks, .. } => {
                for (id, (token, &rank)) in (0u32..).zip(spec.tokens.iter().zip(ranks)) {
                    if rank > 0 {
                        let pairs = splits(&spec.tokens, &ids, &token.text);
                        rows.extend(pairs.map(|(left, right)| (left, right, rank, id)));
                    }
                }
            }
        }
        rows.sort_unstable();
        let count = |len: usize| {
            let too_many = TokenizerError::TooLarge {
                field: "pairs",
                found: len as u64,
                limit: u64::from(u32::MAX),
            };
            u32::try_from(len).map_err(|_| too_many)
        };
        count(rows.len())?;
        let mut starts = Vec::with_capacity(spec.tokens.len() + 1);
        let mut at = 0;
        for left in 0..=spec.vocab_size() {
            while rows.get(at).is_some_and(|row| row.0 < left) {
                at += 1;
            }
            starts.push(count(at)?);
        }
        let rights = rows.iter().map(|row| row.1).collect();
        let made = rows.iter().map(|row| (row.2, row.3)).collect();
        Ok(PairTable { starts, rights, made })
    }

    /// How many pairs there are.
    pub(crate) fn len(&self) -> usize {
        self.rights.len()
    }

    /// The order and the token of the merge of `left` and `right`.
    fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let left = usize::try_from(left).ok()?;
        let (start, end) =
            (position(*self.starts.get(left)?), position(*self.starts.get(left + 1)?));
        let at = self.rights[start..end].binary_search(&right).ok()?;
        Some(self.made[start + at])
    }
}

/// A queued merge, ordered: rank, then position of the left symbol. The rest tells whether it is still true.
type Candidate = Reverse<(u32, u32, u32, u32, u32)>;

/// Buffers of [`Merger::merge`], kept from word to word.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    ids: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
    queue: BinaryHeap<Candidate>,
}

impl Merger {
    /// Merges `symbols` until no pair of neighbours is in the table, lowest rank first and leftmost among equals, and calls
    /// `emit(index, id)` for each symbol left, `index` being that of its first part. Takes O(n log n) for n symbols.
    pub(crate) fn merge(
        &mut self,
        table: &PairTable,
        symbols: &[u32],
        mut emit: impl FnMut(usize, u32),
    ) {
        let end = u32::try_from(symbols.len()).expect("BUG: a text over its limit was let in");
        self.ids.clear();
        self.ids.extend_from_slice(symbols);
        self.next.clear();
        self.next.extend(1..=end);
        self.previous.clear();
        self.previous.extend((0..end).map(|at| at.wrapping_sub(1)));
        self.queue.clear();
        for left in 1..end {
            self.offer(table, left - 1, left);
        }
        while let Some(Reverse((_, at, left, right, made))) = self.queue.pop() {
            let after = self.next[position(at)];
            if self.ids[position(at)] != left || after == end || self.ids[position(after)] != right
            {
                continue;
            }
            self.ids[position(at)] = made;
            self.ids[position(after)] = NONE;
            let follower = self.next[position(after)];
            self.next[position(at)] = follower;
            if follower != end {
                self.previous[position(follower)] = at;
                self.offer(table, at, follower);
            }
            let before = self.previous[position(at)];
            if at != 0 {
                self.offer(table, before, at);
            }
        }
        let mut at = 0;
        while at != end {
            emit(position(at), self.ids[position(at)]);
            at = self.next[position(at)];
        }
    }

    /// Queues the merge of two neighbours, if they merge.
    fn offer(&mut self, table: &PairTable, at: u32, after: u32) {
        let (left, right) = (self.ids[position(at)], self.ids[position(after)]);
        if let Some((rank, made)) = table.get(left, right) {
            self.queue.push(Reverse((rank, at, left, right, made)));
        }
    }
}

/// A u32 as an index; usize has at least 32 bits on every machine we build for.
fn position(at: u32) -> usize {
    usize::try_from(at).expect("BUG: usize has fewer than 32 bits")
}
