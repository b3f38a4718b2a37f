//! The Llama family (Touvron et al. 2023): rotary positions, grouped queries, SwiGLU,
//! root-mean-square norms.

use crate::builder::{Builder, Lora};
use crate::graph::{Graph, Init};
use crate::hf::{LlamaConfig, Rope, RopeScaling};
use crate::layer::Order;
use std::f64::consts::TAU;
use std::sync::Arc;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &LlamaConfig, lora: Option<Lora>) -> Graph {
    let LlamaConfig { width, epsilon, head_dim, inner, .. } = *config;
    let mut build = Builder::texts(config.vocab, config.positions).with_lora(lora);
    let table =
        build.param("model.embed_tokens.weight", [config.vocab, width], Init::Normal { std: STD });
    let mut x = build.tokens(table);
    let heads = Heads {
        queries: config.heads,
        keys: config.kv_heads,
        dim: head_dim,
        mask: AttentionMask::Causal,
    };
    let rope = Arc::new(tensor::rope::Rope::new(frequencies(config.rope, head_dim)));
    let bias = |wanted: bool| wanted.then_some(Init::Zeros);
    for layer in 0..config.layers {
        build.cut();
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        let map = |build: &mut Builder, part: &str, input: usize, output: usize, biased: bool| {
            build.map_with(&name(part), input, output, STD, Order::OutIn, bias(biased))
        };
        let normed = build.rms_norm(&name("input_layernorm"), x, epsilon);
        let (full, shared) = (config.heads * head_dim, config.kv_heads * head_dim);
        let q = map(&mut build, "self_attn.q_proj", width, full, config.attention_bias);
        let k = map(&mut build, "self_attn.k_proj", width, shared, config.attention_bias);
        let v = map(&mut build, "self_attn.v_proj", width, shared, config.attention_bias);
        let qkv = build.linear(normed, &[q, k, v], None);
        let qkv = build.rotate(&rope, heads, qkv);
        let mixed = build.attention(heads, qkv);
        let out = map(&mut build, "self_attn.o_proj", full, width, config.attention_bias);
        let out = build.linear(mixed, &[out], None);
        x = build.add(x, out);
        let normed = build.rms_norm(&name("post_attention_layernorm"), x, epsilon);
        let gate = map(&mut build, "mlp.gate_proj", width, inner, config.mlp_bias);
        let up = map(&mut build, "mlp.up_proj", width, inner, config.mlp_bias);
        let both = build.linear(normed, &[gate, up], None);
        let hidden = build.swiglu(both);
        let down = map(&mut build, "mlp.down_proj", inner, width, config.mlp_bias);
        let down = build.linear(hidden, &[down], None);
        x = build.add(x, down);
    }
    build.cut();
    let x = build.target_rows(x);
    let x = build.rms_norm("model.norm", x, epsilon);
    let head = if config.tied {
        build.tied(table)
    } else {
        build.map_with("lm_head", width, config.vocab, STD, Order::OutIn, None)
    };
    let logits = build.linear(x, &[head], None);
    build.finish(logits)
}

/// Radians a position for each pair of a head.
fn frequencies(rope: Rope, dim: usize) -> Vec<f64> {
    (0..dim / 2)
        .map(|pair| {
            let plain = rope.theta.powf(-((2 * pair) as f64) / dim as f64);
            match rope.scaling {
                RopeScaling::None => plain,
                RopeScaling::Linear { factor } => plain / factor,
                RopeScaling::Llama3 { factor, low, high, original_positions } => {
                    let turns = original_positions as f64 * plain / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    kept * plain + (1.0 - kept) * plain / factor
                }
            }
        })
        .collect()
}
