//! A module's factors to its normal form, kind by kind: shapes compared with the base, rows in the base's order, scales worked out.

use super::adapter::BaseModule;
use super::config::{Config, PeftType};
use super::tensors::{Factors, Named};
use crate::shape::EMBEDDING;
use crate::{
    BaseShape, Delta, Dora, Factor, Ia3, Loha, Lokr, LokrFactor, Lora, OverlayError, RowOrder,
    Side, Vera,
};

/// Makes the modules of one adapter on one base.
pub(super) struct Builder<'a> {
    config: &'a Config,
    base: &'a BaseShape<'a>,
    shared: &'a Factors,
    /// Parts of the shared projections that were cut out before, by side, shape, and whether rows were put in another order.
    cuts: Vec<((bool, u32, u32, bool), Factor)>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        config: &'a Config,
        base: &'a BaseShape<'a>,
        shared: &'a Factors,
    ) -> Result<Builder<'a>, OverlayError> {
        Ok(Builder { config, base, shared, cuts: Vec::new() })
    }

    pub(super) fn delta(
        &mut self,
        module: &BaseModule,
        factors: &Factors,
    ) -> Result<Delta, OverlayError> {
        let (rows, cols) =
            self.base.target(&module.target).expect("BUG: a module of the base without its tensor");
        self.check_heads(module, rows, cols)?;
        let any = &factors.values().next().expect("BUG: a module without factors").tensor;
        let is_linear = module.linear.is_some();
        let simple = self.config.peft_type == PeftType::Lora && !self.config.use_dora;
        if !is_linear && !simple {
            return Err(OverlayError::Embedding { tensor: any.clone() });
        }
        match self.config.peft_type {
            PeftType::Lora if module.target == EMBEDDING => {
                self.embedding(module, factors, rows, cols)
            }
            PeftType::Lora => self.lora(module, factors, rows, cols),
            PeftType::Ia3 => self.ia3(module, factors, rows, cols),
            PeftType::Loha => self.loha(module, factors, rows, cols),
            PeftType::Lokr => self.lokr(module, factors, rows, cols),
            PeftType::Vera => self.vera(module, factors, rows, cols),
        }
    }

    /// A base whose q or k has not the rows that its heads need cannot have them put in another order.
    fn check_heads(&self, module: &BaseModule, rows: u64, cols: u64) -> Result<(), OverlayError> {
        let expected = module.linear.and_then(|(linear, _)| self.base.permuted_rows(&linear));
        match expected.filter(|&expected| expected != rows) {
            None => Ok(()),
            Some(expected) => Err(OverlayError::Shape {
                tensor: module.target.clone(),
                found: vec![rows, cols],
                expected: vec![expected, cols],
            }),
        }
    }

    fn lora(
        &self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        if let Some(Named { tensor, .. }) = factors.get("lora_embedding_A") {
            return Err(OverlayError::UnusedTensor { tensor: tensor.clone() });
        }
        let (a, b) = (get(module, factors, "lora_A")?, get(module, factors, "lora_B")?);
        let rank = self.rank(module, a)?;
        expect(a, rank, cols)?;
        expect(b, rows, rank)?;
        let scale = self.config.scale_of(&module.path)?;
        let row = |row: usize| module.row(self.base, row);
        let (a, b) = (a.factor.clone(), b.factor.with_rows(row));
        let vector = |part| {
            let vector = get(module, factors, part)?;
            expect(vector, 1, rows)?;
            Ok::<Factor, OverlayError>(vector.factor.with_columns(row))
        };
        if self.config.use_dora {
            let magnitude = vector("lora_magnitude_vector")?;
            return Ok(Delta::Dora(Dora { scale, a, b, magnitude }));
        }
        let bias = if self.config.lora_bias { Some(vector("lora_B.bias")?) } else { None };
        Ok(Delta::Lora(Lora { scale, a, b, bias }))
    }

    /// PEFT's A is `[rank, vocabulary]` and its B `[width, rank]`, of a table that is looked up; as the matrix that the table is, they are B and A
    /// transposed.
    fn embedding(
        &self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        if let Some(Named { tensor, .. }) = factors.get("lora_A") {
            return Err(OverlayError::UnusedTensor { tensor: tensor.clone() });
        }
        let a = get(module, factors, "lora_embedding_A")?;
        let b = get(module, factors, "lora_embedding_B")?;
        if factors.len() > 2 || !self.config.invocation.is_empty() {
            return Err(OverlayError::Embedding { tensor: a.tensor.clone() });
        }
        let rank = self.rank(module, a)?;
        expect(a, rank, rows)?;
        expect(b, cols, rank)?;
        let scale = self.config.scale_of(&module.path)?;
        let (a, b) = (b.factor.transposed(), a.factor.transposed());
        Ok(Delta::Lora(Lora { scale, a, b, bias: None }))
    }

    fn ia3(
        &self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        let l = get(module, factors, "ia3_l")?;
        if self.config.is_feedforward(&module.path) {
            expect(l, 1, cols)?;
            return Ok(Delta::Ia3(Ia3 { side: Side::Input, l: l.factor.clone() }));
        }
        expect(l, rows, 1)?;
        let row = |row: usize| module.row(self.base, row);
        Ok(Delta::Ia3(Ia3 { side: Side::Output, l: l.factor.as_row().with_columns(row) }))
    }

    fn loha(
        &self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        let get = |part| get(module, factors, part);
        let (w1_a, w1_b) = (get("hada_w1_a")?, get("hada_w1_b")?);
        let (w2_a, w2_b) = (get("hada_w2_a")?, get("hada_w2_b")?);
        let rank = self.rank(module, w1_b)?;
        for (a, b) in [(w1_a, w1_b), (w2_a, w2_b)] {
            expect(a, rows, rank)?;
            expect(b, rank, cols)?;
        }
        let row = |row: usize| module.row(self.base, row);
        Ok(Delta::Loha(Loha {
            scale: self.config.scale_of(&module.path)?,
            w1_a: w1_a.factor.with_rows(row),
            w1_b: w1_b.factor.clone(),
            w2_a: w2_a.factor.with_rows(row),
            w2_b: w2_b.factor.clone(),
        }))
    }

    fn lokr(
        &self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        let (w1, shape1) =
            self.lokr_side(module, factors, ["lokr_w1", "lokr_w1_a", "lokr_w1_b"])?;
        let (w2, shape2) =
            self.lokr_side(module, factors, ["lokr_w2", "lokr_w2_a", "lokr_w2_b"])?;
        // Factors' dimensions fit in u32, so products fit in u64.
        let found = [shape1.0 * shape2.0, shape1.1 * shape2.1];
        if found != [rows, cols] {
            let tensor = factors.values().next().expect("BUG: looked at above").tensor.clone();
            let (found, expected) = (found.into(), vec![rows, cols]);
            return Err(OverlayError::Shape { tensor, found, expected });
        }
        let permuted = module.linear.and_then(|(linear, _)| self.base.permuted_rows(&linear));
        let order = match permuted {
            Some(_) => RowOrder::Heads { head_dim: self.base.head_dim },
            None => RowOrder::Base,
        };
        let scale = self.config.scale_of(&module.path)?;
        Ok(Delta::Lokr(Lokr { scale, w1, w2, rows: order }))
    }

    /// One side, whole or in two factors, and its shape.
    fn lokr_side(
        &self,
        module: &BaseModule,
        factors: &Factors,
        [whole, a, b]: [&'static str; 3],
    ) -> Result<(LokrFactor, (u64, u64)), OverlayError> {
        let low = factors.get(a).or(factors.get(b));
        if let (Some(_), Some(other)) = (factors.get(whole), low) {
            return Err(OverlayError::UnusedTensor { tensor: other.tensor.clone() });
        }
        if low.is_none() {
            let w = &get(module, factors, whole)?.factor;
            return Ok((LokrFactor::Full(w.clone()), (w.rows().into(), w.cols().into())));
        }
        let (a, b) = (get(module, factors, a)?, get(module, factors, b)?);
        let rank = self.rank(module, b)?;
        expect(a, a.factor.rows().into(), rank)?;
        let shape = (a.factor.rows().into(), b.factor.cols().into());
        Ok((LokrFactor::Low(a.factor.clone(), b.factor.clone()), shape))
    }

    fn vera(
        &mut self,
        module: &BaseModule,
        factors: &Factors,
        rows: u64,
        cols: u64,
    ) -> Result<Delta, OverlayError> {
        let lambda_b = get(module, factors, "vera_lambda_b")?;
        let lambda_d = get(module, factors, "vera_lambda_d")?;
        let shared = |part: &'static str| {
            let module = "the file".to_owned();
            self.shared.get(part).ok_or(OverlayError::MissingFactor { module, factor: part })
        };
        let (a, b) = (shared("vera_A")?, shared("vera_B")?);
        let rank = self.rank(module, a)?;
        expect(lambda_b, 1, rows)?;
        expect(lambda_d, 1, rank)?;
        // Wider and taller than a module is well; it uses the first columns and rows.
        let (a_cols, b_rows) = (u64::from(a.factor.cols()), u64::from(b.factor.rows()));
        expect(a, rank, a_cols.max(cols))?;
        expect(b, b_rows.max(rows), rank)?;
        let row = |row: usize| module.row(self.base, row);
        let moved =
            module.linear.is_some_and(|(linear, _)| self.base.permuted_rows(&linear).is_some());
        let (a, b) = (a.factor.clone(), b.factor.clone());
        let rank = a.rows();
        // Both were just compared with shapes of the factors, which fit in u32.
        let (rows, cols) = (rows as u32, cols as u32);
        let a = self.cut((true, rank, cols, false), || a.corner(rank, cols));
        let b = self.cut((false, rows, rank, moved), || match moved {
            true => b.corner(rows, rank).with_rows(row),
            false => b.corner(rows, rank),
        });
        let lambda_b = lambda_b.factor.with_columns(row);
        Ok(Delta::Vera(Vera { lambda_b, lambda_d: lambda_d.factor.clone(), a, b }))
    }

    /// The cut that was made before, or a new one. Rows of q and k differ in their heads, but of one number of rows there is one order.
    fn cut(&mut self, key: (bool, u32, u32, bool), make: impl FnOnce() -> Factor) -> Factor {
        if let Some((_, factor)) = self.cuts.iter().find(|(known, _)| *known == key) {
            return factor.clone();
        }
        let factor = make();
        self.cuts.push((key, factor.clone()));
        factor
    }

    /// The rank that the configuration gives this module, which is the rows of `factor`.
    fn rank(&self, module: &BaseModule, factor: &Named) -> Result<u64, OverlayError> {
        let expected = u64::from(self.config.rank_of(&module.path));
        let found = u64::from(factor.factor.rows());
        match found == expected {
            true => Ok(expected),
            false => Err(OverlayError::Rank { tensor: factor.tensor.clone(), found, expected }),
        }
    }
}

/// The rows and columns that a module's factors adapt, as far as they tell: one dimension of an IA³ vector, and 1 for the other.
pub(super) fn adapted_shape(
    config: &Config,
    path: &str,
    factors: &Factors,
    shared: &Factors,
) -> Option<(u64, u64)> {
    let rows = |part: &str| Some(u64::from(factors.get(part)?.factor.rows()));
    let cols = |part: &str| Some(u64::from(factors.get(part)?.factor.cols()));
    let side = |whole: &str, a: &str, b: &str| {
        Some((rows(whole).or_else(|| rows(a))?, cols(whole).or_else(|| cols(b))?))
    };
    match config.peft_type {
        PeftType::Lora if path == "model.embed_tokens" => {
            Some((cols("lora_embedding_A")?, rows("lora_embedding_B")?))
        }
        PeftType::Lora => Some((rows("lora_B")?, cols("lora_A")?)),
        PeftType::Ia3 if config.is_feedforward(path) => Some((1, cols("ia3_l")?)),
        PeftType::Ia3 => Some((rows("ia3_l")?, 1)),
        PeftType::Loha => Some((rows("hada_w1_a")?, cols("hada_w1_b")?)),
        PeftType::Lokr => {
            let (o1, i1) = side("lokr_w1", "lokr_w1_a", "lokr_w1_b")?;
            let (o2, i2) = side("lokr_w2", "lokr_w2_a", "lokr_w2_b")?;
            Some((o1 * o2, i1 * i2))
        }
        PeftType::Vera => {
            let cols = u64::from(shared.get("vera_A")?.factor.cols());
            Some((u64::from(factors.get("vera_lambda_b")?.factor.cols()), cols))
        }
    }
}

fn get<'f>(
    module: &BaseModule,
    factors: &'f Factors,
    part: &'static str,
) -> Result<&'f Named, OverlayError> {
    factors.get(part).ok_or_else(|| {
        let module = module.path.clone();
        match part {
            "lora_A" | "lora_embedding_A" => OverlayError::MissingA { module },
            "lora_B" | "lora_embedding_B" => OverlayError::MissingB { module },
            _ => OverlayError::MissingFactor { module, factor: part },
        }
    })
}

fn expect(named: &Named, rows: u64, cols: u64) -> Result<(), OverlayError> {
    let found = [u64::from(named.factor.rows()), u64::from(named.factor.cols())];
    match found == [rows, cols] {
        true => Ok(()),
        false => Err(OverlayError::Shape {
            tensor: named.tensor.clone(),
            found: found.into(),
            expected: vec![rows, cols],
        }),
    }
}
