//! GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, head tied to the token table
//! or its own.

use crate::builder::{Builder, Lora};
use crate::graph::{Graph, Init};
use crate::hf::Gpt2Config;
use crate::layer::Order;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &Gpt2Config, lora: Option<Lora>) -> Graph {
    let Gpt2Config { width, epsilon, .. } = *config;
    let mut build = Builder::texts(config.vocab, config.positions).with_lora(lora);
    let table =
        build.param("transformer.wte.weight", [config.vocab, width], Init::Normal { std: STD });
    let places =
        build.param("transformer.wpe.weight", [config.positions, width], Init::Normal { std: STD });
    let (tokens, positions) = (build.tokens(table), build.positions(places));
    let mut x = build.add(tokens, positions);
    let heads = Heads {
        queries: config.heads,
        keys: config.heads,
        dim: width / config.heads,
        mask: AttentionMask::Causal,
    };
    // What ends on the residual stream starts smaller, by the number of its summands.
    let small = STD / (2.0 * config.layers as f32).sqrt();
    for layer in 0..config.layers {
        build.cut();
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let zeros = Some(Init::Zeros);
        let normed = build.layer_norm(&name("ln_1"), x, epsilon);
        let qkv = build.map_with(&name("attn.c_attn"), width, 3 * width, STD, Order::InOut, zeros);
        let qkv = build.linear(normed, &[qkv], None);
        let mixed = build.attention(heads, qkv);
        let out = build.map_with(&name("attn.c_proj"), width, width, small, Order::InOut, zeros);
        let out = build.linear(mixed, &[out], None);
        x = build.add(x, out);
        let normed = build.layer_norm(&name("ln_2"), x, epsilon);
        let up = build.map_with(&name("mlp.c_fc"), width, config.inner, STD, Order::InOut, zeros);
        let up = build.linear(normed, &[up], Some(config.activation));
        let down =
            build.map_with(&name("mlp.c_proj"), config.inner, width, small, Order::InOut, zeros);
        let down = build.linear(up, &[down], None);
        x = build.add(x, down);
    }
    build.cut();
    let x = build.target_rows(x);
    let x = build.layer_norm("transformer.ln_f", x, epsilon);
    let head = if config.tied {
        build.tied(table)
    } else {
        build.map_with("lm_head", width, config.vocab, STD, Order::OutIn, None)
    };
    let logits = build.linear(x, &[head], None);
    build.finish(logits)
}
