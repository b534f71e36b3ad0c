//! The numbers of one model, read.

use serde_json::Value;

use crate::problems::Problems;

/// Two measurements of one number differ by no more than this share: exponentials are the system's.
const TOLERANCE: f64 = 0.02;

/// One model's numbers.
pub(super) struct Study {
    pub(super) head: Value,
    pub(super) types: Vec<Type>,
}

/// One quantization type's.
pub(super) struct Type {
    pub(super) name: String,
    pub(super) fallback: String,
    pub(super) fit: [u64; 2],
    weights: Value,
    kl: Value,
}

impl Study {
    pub(super) fn parse(text: &str) -> Result<Study, Problems> {
        let wrong = |what: &str| Problems::one(format!("drift: the numbers: {what}"));
        let mut document: Value =
            serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
        let mut types = Vec::new();
        for row in document["types"].as_array().ok_or_else(|| wrong("no types"))? {
            let text = |key: &str| row[key].as_str().map(str::to_owned).ok_or_else(|| wrong(key));
            let count = |at: usize| row["fit"][at].as_u64().ok_or_else(|| wrong("fit"));
            types.push(Type {
                name: text("type")?,
                fallback: text("fallback")?,
                fit: [count(0)?, count(1)?],
                weights: row["weights"].clone(),
                kl: row["kl"].clone(),
            });
        }
        Ok(Study { head: document["head"].take(), types })
    }

    /// A number of the head.
    pub(super) fn number(&self, key: &str) -> f64 {
        self.head[key].as_f64().unwrap_or(f64::NAN)
    }

    /// A list of counts in the head.
    pub(super) fn list(&self, key: &str) -> Vec<f64> {
        numbers(&self.head[key])
    }

    /// Numbers that another measurement does not bear out.
    pub(super) fn differences(&self, again: &Study) -> Vec<String> {
        let mut found = Vec::new();
        if self.types.len() != again.types.len() {
            found.push("drift: other types than were kept".to_owned());
        }
        for (kept, new) in self.types.iter().zip(&again.types) {
            for (part, kept_part, new_part) in
                [("weights", &kept.weights, &new.weights), ("kl", &kept.kl, &new.kl)]
            {
                let keys = kept_part.as_object().into_iter().flatten().map(|(key, _)| key);
                for key in keys {
                    let (a, b) = (numbers(&kept_part[key]), numbers(&new_part[key]));
                    let near = |(a, b): (&f64, &f64)| {
                        (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()).max(1e-9)
                    };
                    if a.len() != b.len() || !a.iter().zip(&b).all(near) {
                        let name = &kept.name;
                        found.push(format!("drift: {name}: {part}.{key} is not what was kept"));
                    }
                }
            }
        }
        found
    }

    /// What the page says in words and the numbers do not.
    pub(super) fn broken_claims(&self) -> Vec<String> {
        let mut found = Vec::new();
        for kind in &self.types {
            let mut claim = |holds: bool, what: &str| {
                if !holds {
                    found.push(format!("drift: {}: {what}", kind.name));
                }
            };
            let (overlay, merge) = (kind.weight("overlay"), kind.weight("merge"));
            claim(overlay < 1.02 * merge, "an overlay's weights are as near as a merge's");
            let unmerged = kind.weights("unmerged");
            claim(unmerged.len() == 100, "every type goes through a hundred cycles");
            claim(unmerged[0] > kind.weight("base"), "one cycle costs");
            claim(
                unmerged.windows(2).all(|pair| pair[1] >= 0.999 * pair[0]),
                "no later cycle repairs",
            );
            claim(
                kind.weight("sequential_ab") > 1.001 * kind.weight("joint")
                    && kind.weight("sequential_ba") > 1.001 * kind.weight("joint"),
                "two merges one after the other cost more than one",
            );
        }
        found
    }
}

impl Type {
    /// An error of weights.
    pub(super) fn weight(&self, key: &str) -> f64 {
        self.weights[key].as_f64().unwrap_or(f64::NAN)
    }

    /// Errors of weights after each cycle.
    pub(super) fn weights(&self, key: &str) -> Vec<f64> {
        numbers(&self.weights[key])
    }

    /// A divergence of logits.
    pub(super) fn kl(&self, key: &str) -> f64 {
        self.kl[key].as_f64().unwrap_or(f64::NAN)
    }

    /// Divergences after some cycles.
    pub(super) fn kls(&self, key: &str) -> Vec<f64> {
        numbers(&self.kl[key])
    }
}

/// A number or a list of them.
fn numbers(value: &Value) -> Vec<f64> {
    match value.as_array() {
        Some(list) => list.iter().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect(),
        None => value.as_f64().into_iter().collect(),
    }
}
