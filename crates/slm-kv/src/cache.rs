//! The rows of one sequence.

use core::ops::Range;

use slm_manifest::{ExecutionId, KvType};

use crate::KvError;
use crate::geometry::KvGeometry;
use crate::page::{KvRows, Page};

/// K and V of one sequence, all layers. Pages are made when positions need them and never beyond the geometry's capacity.
///
/// A forward pass appends the rows of its new positions layer by layer, reads spans of each layer (the new rows included), and at the end
/// commits them. Until then they do not count in [`KvCache::len`], and [`KvCache::truncate`] drops them.
#[derive(Debug)]
pub struct KvCache {
    execution: ExecutionId,
    geometry: KvGeometry,
    kv_type: KvType,
    pages: Vec<Page>,
    /// Where in a page of full length layer l's K block starts, in values per position; its V block follows.
    offsets: Vec<usize>,
    /// Positions written, per layer; at least `len`.
    written: Vec<u32>,
    len: u32,
}

/// Some consecutive positions of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KvSpan<'a> {
    /// Position of the first row.
    pub first_position: u32,
    /// Number of rows.
    pub n: u32,
    /// Keys, `[n, width]`.
    pub k: KvRows<'a>,
    /// Values, `[n, width]`.
    pub v: KvRows<'a>,
}

/// The spans of a range of positions, ascending; made by [`KvCache::spans`].
#[derive(Debug, Clone)]
pub struct KvSpans<'a> {
    cache: &'a KvCache,
    layer: usize,
    next: u32,
    end: u32,
}

impl KvCache {
    /// An empty cache for `execution`; no page is made yet.
    ///
    /// # Errors
    /// [`KvError::Memory`] when not even the tables of a number per layer can be had.
    pub fn new(
        execution: ExecutionId,
        geometry: KvGeometry,
        kv_type: KvType,
    ) -> Result<KvCache, KvError> {
        let n_layers = geometry.widths().len();
        let (mut offsets, mut written) = (Vec::new(), Vec::new());
        let reserved =
            offsets.try_reserve_exact(n_layers).and_then(|()| written.try_reserve_exact(n_layers));
        reserved.map_err(|_| KvError::Memory { bytes: n_layers as u64 * 16 })?;
        written.resize(n_layers, 0);
        let mut offset = 0;
        for &width in geometry.widths() {
            offsets.push(offset);
            offset += 2 * width as usize;
        }
        Ok(KvCache { execution, geometry, kv_type, pages: Vec::new(), offsets, written, len: 0 })
    }

    /// The execution whose rows these are.
    pub fn execution(&self) -> ExecutionId {
        self.execution
    }

    /// The type rows are stored in.
    pub fn kv_type(&self) -> KvType {
        self.kv_type
    }

    /// The layout.
    pub fn geometry(&self) -> &KvGeometry {
        &self.geometry
    }

    /// Committed positions.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether no position is committed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most positions the cache may hold.
    pub fn capacity(&self) -> u32 {
        self.geometry.capacity()
    }

    /// Bytes of the pages that exist; at most [`KvGeometry::bytes`] of the cache's type.
    pub fn bytes_reserved(&self) -> u64 {
        self.pages.iter().map(Page::bytes).sum()
    }

    /// Makes the pages of `n_tokens` positions after the committed ones, so that appending them allocates nothing and cannot fail for
    /// lack of room.
    ///
    /// # Errors
    /// [`KvError::Full`] before any page is made; [`KvError::Memory`].
    pub fn reserve(&mut self, n_tokens: u32) -> Result<(), KvError> {
        let end = self.end_of(self.len, u64::from(n_tokens))?;
        self.grow(end)
    }

    /// Writes the rows of new positions of one layer, after those it has: `k` and `v` are `[n_tokens, width]`, rounded to nearest even
    /// where the cache is f16. They are visible in [`KvCache::spans`] of this layer at once.
    ///
    /// # Errors
    /// Nothing is visible of a refused call: [`KvError::WrongExecution`], [`KvError::Layer`], [`KvError::Shape`], [`KvError::Full`],
    /// [`KvError::Memory`], and [`KvError::NonFinite`] for a NaN, an infinity, or a value beyond f16's range in an f16 cache.
    pub fn append(
        &mut self,
        execution: ExecutionId,
        layer: usize,
        k: &[f32],
        v: &[f32],
    ) -> Result<(), KvError> {
        if execution != self.execution {
            return Err(KvError::WrongExecution { cache: self.execution, call: execution });
        }
        let width = self.width(layer)?;
        if k.len() != v.len() || !k.len().is_multiple_of(width) {
            return Err(KvError::Shape { layer, k: k.len(), v: v.len(), width });
        }
        let first = self.written[layer];
        let end = self.end_of(first, (k.len() / width) as u64)?;
        self.grow(end)?;
        for (half, rows) in [("k", k), ("v", v)] {
            let mut position = first;
            let mut rows = rows;
            while position < end {
                let (page, row, n) = self.locate(position, end);
                let (now, later) = rows.split_at(n as usize * width);
                let at = self.block(page, layer, half == "v") + row as usize * width;
                self.pages[page].write(at, now).map_err(|index| KvError::NonFinite {
                    half,
                    layer,
                    position: position + (index / width) as u32,
                    channel: index % width,
                    value: now[index],
                })?;
                rows = later;
                position += n;
            }
        }
        self.written[layer] = end;
        Ok(())
    }

    /// Counts `n_tokens` appended positions in.
    ///
    /// # Errors
    /// [`KvError::Uneven`] names the first layer that was not appended exactly so many; nothing is committed then.
    pub fn commit(&mut self, n_tokens: u32) -> Result<(), KvError> {
        let len = u64::from(self.len) + u64::from(n_tokens);
        match self.written.iter().position(|&written| u64::from(written) != len) {
            Some(layer) => Err(KvError::Uneven { len, layer, written: self.written[layer] }),
            None => {
                self.len = self.written[0];
                Ok(())
            }
        }
    }

    /// Rows of `layer` at `range`, ascending, one span per page. Rows appended but not committed are there too. Allocates nothing.
    ///
    /// # Errors
    /// [`KvError::Layer`]; [`KvError::Range`] when the layer has not all of the positions.
    pub fn spans(&self, layer: usize, range: Range<u32>) -> Result<KvSpans<'_>, KvError> {
        self.width(layer)?;
        let written = self.written[layer];
        if range.start > range.end || range.end > written {
            return Err(KvError::Range { layer, start: range.start, end: range.end, written });
        }
        let pages = range.start as usize / self.geometry.page_len() as usize
            ..self.geometry.pages(range.end);
        if let Some(page) = self.pages[pages].iter().find(|page| page.execution() != self.execution)
        {
            return Err(KvError::WrongExecution { cache: page.execution(), call: self.execution });
        }
        Ok(KvSpans { cache: self, layer, next: range.start, end: range.end })
    }

    /// Keeps the first `len` committed positions (all of them, if there are fewer), drops the rest and everything that is not committed, and
    /// frees the pages that hold nothing any more. No arithmetic: what is kept has the bits it had.
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
        self.written.fill(self.len);
        self.pages.truncate(self.geometry.pages(self.len));
    }

    fn width(&self, layer: usize) -> Result<usize, KvError> {
        let n_layers = self.geometry.widths().len();
        self.geometry
            .widths()
            .get(layer)
            .map(|&width| width as usize)
            .ok_or(KvError::Layer { layer, n_layers })
    }

    /// `used + wanted`, if the cache may hold so many.
    fn end_of(&self, used: u32, wanted: u64) -> Result<u32, KvError> {
        let capacity = self.capacity();
        match wanted <= u64::from(capacity - used) {
            true => Ok(used + wanted as u32),
            false => Err(KvError::Full { capacity, used, wanted }),
        }
    }

    /// Makes the pages that `positions` positions need.
    fn grow(&mut self, positions: u32) -> Result<(), KvError> {
        while self.pages.len() < self.geometry.pages(positions) {
            let len = self.geometry.page_positions(self.pages.len()) as usize
                * self.geometry.row_values();
            self.pages
                .try_reserve(1)
                .map_err(|_| KvError::Memory { bytes: size_of::<Page>() as u64 })?;
            self.pages.push(Page::new(self.execution, self.kv_type, len)?);
        }
        Ok(())
    }

    /// Page and row of `position`, and how many rows from there are in the page and before `end`.
    fn locate(&self, position: u32, end: u32) -> (usize, u32, u32) {
        let page_len = self.geometry.page_len();
        let row = position % page_len;
        ((position / page_len) as usize, row, (page_len - row).min(end - position))
    }

    /// Where in page `page` the K or V block of `layer` starts, in values.
    fn block(&self, page: usize, layer: usize, is_v: bool) -> usize {
        let positions = self.geometry.page_positions(page) as usize;
        let width = self.geometry.widths()[layer] as usize;
        positions * (self.offsets[layer] + usize::from(is_v) * width)
    }
}

impl<'a> Iterator for KvSpans<'a> {
    type Item = KvSpan<'a>;

    fn next(&mut self) -> Option<KvSpan<'a>> {
        if self.next >= self.end {
            return None;
        }
        let cache = self.cache;
        let width = cache.geometry.widths()[self.layer] as usize;
        let first_position = self.next;
        let (page, row, n) = cache.locate(first_position, self.end);
        let rows = |is_v| {
            let at = cache.block(page, self.layer, is_v) + row as usize * width;
            cache.pages[page].rows(at, n as usize * width)
        };
        self.next += n;
        Some(KvSpan { first_position, n, k: rows(false), v: rows(true) })
    }
}
