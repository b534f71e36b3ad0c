//! The stack's share in each matrix, looked up once per session.

use slm_overlay::{EMBEDDING, HEAD, Stack, TensorStack};

use crate::load::{Base, MatrixRef};

/// What adapters add to the matrices of one block, those together that read the same rows; empty ones cost nothing.
#[derive(Debug, Clone)]
pub(crate) struct LayerOverlays {
    /// Queries, keys, values.
    pub(crate) qkv: [TensorStack; 3],
    pub(crate) attn_output: [TensorStack; 1],
    /// Gate, up.
    pub(crate) gate_up: [TensorStack; 2],
    pub(crate) ffn_down: [TensorStack; 1],
}

/// What adapters add to the whole graph.
#[derive(Debug, Clone)]
pub(crate) struct Overlays {
    /// What is added to rows of the embedding table.
    pub(crate) embedding: TensorStack,
    pub(crate) layers: Vec<LayerOverlays>,
    /// What is added to the head's product; the embedding's own, where the two are tied, is not among it.
    pub(crate) head: TensorStack,
}

impl Overlays {
    pub(crate) fn new(base: &Base, stack: &Stack) -> Overlays {
        let of = |matrix: MatrixRef| stack.for_tensor(base.matrix_name(matrix));
        let layers = base
            .graph()
            .layers
            .iter()
            .map(|layer| LayerOverlays {
                qkv: [layer.attn_q, layer.attn_k, layer.attn_v].map(of),
                attn_output: [of(layer.attn_output)],
                gate_up: [layer.ffn_gate, layer.ffn_up].map(of),
                ffn_down: [of(layer.ffn_down)],
            })
            .collect();
        let (embedding, head) = (stack.for_tensor(EMBEDDING), stack.for_tensor(HEAD));
        Overlays { embedding, layers, head }
    }

    /// The most values between the two halves that stacks which read the same row have together, for one token.
    pub(crate) fn widest(&self) -> usize {
        let width = |stacks: &[TensorStack]| stacks.iter().map(|stack| stack.scratch_len(1)).sum();
        let sets = self.layers.iter().flat_map(LayerOverlays::sets).map(width);
        sets.chain([self.head.scratch_len(1)]).max().unwrap_or(0)
    }

    /// Whether any stack multiplies what its tensor is multiplied with.
    pub(crate) fn scales_input(&self) -> bool {
        self.layers.iter().flat_map(LayerOverlays::sets).flatten().any(TensorStack::scales_input)
    }
}

impl LayerOverlays {
    /// All stacks; those of a set read the same row.
    fn sets(&self) -> [&[TensorStack]; 4] {
        [&self.qkv[..], &self.attn_output, &self.gate_up, &self.ffn_down]
    }
}
