//! GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, tied or untied head.

use crate::builder::{Builder, Linear};
use crate::graph::{Graph, Init};
use crate::hf::Gpt2Config;
use crate::lora::Lora;
use crate::op::Order;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &Gpt2Config, lora: Option<Lora>) -> Graph {
    let Gpt2Config { width, epsilon, .. } = *config;
    let mut build = Builder::tokens(config.vocab, config.positions).with_lora(lora);
    let table =
        build.param("transformer.wte.weight", [config.vocab, width], Init::Normal { std: STD });
    let positions =
        build.param("transformer.wpe.weight", [config.positions, width], Init::Normal { std: STD });
    let (tokens, positions) = (build.embed_tokens(table), build.embed_positions(positions));
    let mut x = build.add(tokens, positions);
    let heads = Heads {
        queries: config.heads,
        keys: config.heads,
        dim: width / config.heads,
        mask: AttentionMask::Causal,
    };
    // Layers that write to the residual stream start smaller, by the number of such layers.
    let residual_std = STD / (2.0 * config.layers as f32).sqrt();
    for layer in 0..config.layers {
        build.segment();
        let name = |part: &str| format!("transformer.h.{layer}.{part}");
        let normed = build.layer_norm(&name("ln_1"), x, epsilon);
        let conv1d = |part: &str, input: usize, output: usize, std: f32| {
            Linear::new(name(part), input, output).init_std(std).order(Order::InOut)
        };
        let qkv = build.linear(normed, conv1d("attn.c_attn", width, 3 * width, STD));
        let mixed = build.attention(heads, qkv);
        let out = build.linear(mixed, conv1d("attn.c_proj", width, width, residual_std));
        x = build.add(x, out);
        let normed = build.layer_norm(&name("ln_2"), x, epsilon);
        let up = conv1d("mlp.c_fc", width, config.inner, STD).activation(config.activation);
        let up = build.linear(normed, up);
        let down = build.linear(up, conv1d("mlp.c_proj", config.inner, width, residual_std));
        x = build.add(x, down);
    }
    build.segment();
    let x = build.target_rows(x);
    let x = build.layer_norm("transformer.ln_f", x, epsilon);
    let head = if config.tied {
        build.tied_layer(table)
    } else {
        build.linear_layer(Linear::new("lm_head", width, config.vocab).init_std(STD).bias(false))
    };
    let logits = build.apply_linear(x, &[head]);
    build.finish(logits)
}
