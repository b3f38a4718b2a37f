//! Llama (Touvron et al. 2023): rotary positions, grouped-query attention, SwiGLU, RMS norm.

use crate::builder::{Builder, Linear};
use crate::graph::{Graph, Init};
use crate::hf::{LlamaConfig, RopeConfig, RopeScaling};
use crate::lora::Lora;
use std::f64::consts::TAU;
use std::sync::Arc;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &LlamaConfig, lora: Option<Lora>) -> Graph {
    let LlamaConfig { width, epsilon, head_dim, inner, .. } = *config;
    let mut build = Builder::tokens(config.vocab, config.positions).with_lora(lora);
    let table =
        build.param("model.embed_tokens.weight", [config.vocab, width], Init::Normal { std: STD });
    let mut x = build.embed_tokens(table);
    let heads = Heads {
        queries: config.heads,
        keys: config.kv_heads,
        dim: head_dim,
        mask: AttentionMask::Causal,
    };
    let rope = Arc::new(tensor::rope::Rope::new(frequencies(config.rope, head_dim)));
    for layer in 0..config.layers {
        build.segment();
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let linear = |part: &str, input: usize, output: usize, bias: bool| {
            Linear::new(name(part), input, output).init_std(STD).bias(bias)
        };
        let normed = build.rms_norm(&name("input_layernorm"), x, epsilon);
        let (q_width, kv_width) = (config.heads * head_dim, config.kv_heads * head_dim);
        let [q, k, v] = [("q", q_width), ("k", kv_width), ("v", kv_width)].map(|(part, output)| {
            let part = format!("self_attn.{part}_proj");
            build.linear_layer(linear(&part, width, output, config.attention_bias))
        });
        let qkv = build.apply_linear(normed, &[q, k, v]);
        let qkv = build.rope(&rope, heads, qkv);
        let mixed = build.attention(heads, qkv);
        let out = linear("self_attn.o_proj", q_width, width, config.attention_bias);
        let out = build.linear(mixed, out);
        x = build.add(x, out);
        let normed = build.rms_norm(&name("post_attention_layernorm"), x, epsilon);
        let [gate, up] = ["mlp.gate_proj", "mlp.up_proj"]
            .map(|part| build.linear_layer(linear(part, width, inner, config.mlp_bias)));
        let gate_up = build.apply_linear(normed, &[gate, up]);
        let hidden = build.swiglu(gate_up);
        let down = build.linear(hidden, linear("mlp.down_proj", inner, width, config.mlp_bias));
        x = build.add(x, down);
    }
    build.segment();
    let x = build.target_rows(x);
    let x = build.rms_norm("model.norm", x, epsilon);
    let head = if config.tied {
        build.tied_layer(table)
    } else {
        build.linear_layer(Linear::new("lm_head", width, config.vocab).init_std(STD).bias(false))
    };
    let logits = build.apply_linear(x, &[head]);
    build.finish(logits)
}

/// Returns the rotation per position, in radians, for each pair of columns of a head.
fn frequencies(rope: RopeConfig, dim: usize) -> Vec<f64> {
    (0..dim / 2)
        .map(|pair| {
            let unscaled = rope.theta.powf(-((2 * pair) as f64) / dim as f64);
            match rope.scaling {
                RopeScaling::None => unscaled,
                RopeScaling::Linear { factor } => unscaled / factor,
                RopeScaling::Llama3 { factor, low, high, original_positions } => {
                    let turns = original_positions as f64 * unscaled / TAU;
                    let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    share * unscaled + (1.0 - share) * unscaled / factor
                }
            }
        })
        .collect()
}
