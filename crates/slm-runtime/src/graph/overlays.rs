//! The stack's share in each matrix, looked up once per session.

use slm_overlay::{Stack, TensorStack};

use crate::load::{Base, MatrixRef};

/// What adapters add to the matrices of one block; empty ones cost nothing.
#[derive(Debug, Clone)]
pub(crate) struct LayerOverlays {
    pub(crate) attn_q: TensorStack,
    pub(crate) attn_k: TensorStack,
    pub(crate) attn_v: TensorStack,
    pub(crate) attn_output: TensorStack,
    pub(crate) ffn_gate: TensorStack,
    pub(crate) ffn_up: TensorStack,
    pub(crate) ffn_down: TensorStack,
}

/// What adapters add to the whole graph.
#[derive(Debug, Clone)]
pub(crate) struct Overlays {
    pub(crate) layers: Vec<LayerOverlays>,
}

impl Overlays {
    pub(crate) fn new(base: &Base, stack: &Stack) -> Overlays {
        let of = |matrix: MatrixRef| stack.for_tensor(base.matrix_name(matrix));
        let layers = base
            .graph()
            .layers
            .iter()
            .map(|layer| LayerOverlays {
                attn_q: of(layer.attn_q),
                attn_k: of(layer.attn_k),
                attn_v: of(layer.attn_v),
                attn_output: of(layer.attn_output),
                ffn_gate: of(layer.ffn_gate),
                ffn_up: of(layer.ffn_up),
                ffn_down: of(layer.ffn_down),
            })
            .collect();
        Overlays { layers }
    }
}
