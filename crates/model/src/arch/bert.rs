//! BERT (Devlin et al. 2019): post-norm encoder, bidirectional attention, classification by the
//! first token or by the mean of all tokens.

use crate::builder::{Builder, Linear};
use crate::graph::{Graph, Init};
use crate::hf::{BertConfig, Pooling};
use crate::lora::Lora;
use tensor::activation::Activation;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &BertConfig, lora: Option<Lora>) -> Graph {
    let BertConfig { width, epsilon, .. } = *config;
    let mut build = Builder::tokens(config.vocab, config.positions).with_lora(lora);
    let table = |build: &mut Builder, name: &str, rows: usize| {
        build.param(
            format!("bert.embeddings.{name}_embeddings.weight"),
            [rows, width],
            Init::Normal { std: STD },
        )
    };
    let words = table(&mut build, "word", config.vocab);
    let positions = table(&mut build, "position", config.positions);
    let types = table(&mut build, "token_type", config.types);
    let (words, positions, types) =
        (build.embed_tokens(words), build.embed_positions(positions), build.embed_segment(types));
    let x = build.add(words, types);
    let x = build.add(x, positions);
    let mut x = build.layer_norm("bert.embeddings.LayerNorm", x, epsilon);
    let heads = Heads {
        queries: config.heads,
        keys: config.heads,
        dim: width / config.heads,
        mask: AttentionMask::Full,
    };
    for layer in 0..config.layers {
        build.segment();
        let name = |part: &str| format!("bert.encoder.layer.{layer}.{part}");
        let linear = |part: &str, input: usize, output: usize| {
            Linear::new(name(part), input, output).init_std(STD)
        };
        let [q, k, v] = ["query", "key", "value"].map(|part| {
            build.linear_layer(linear(&format!("attention.self.{part}"), width, width))
        });
        let qkv = build.apply_linear(x, &[q, k, v]);
        let mixed = build.attention(heads, qkv);
        let out = build.linear(mixed, linear("attention.output.dense", width, width));
        let sum = build.add(x, out);
        x = build.layer_norm(&name("attention.output.LayerNorm"), sum, epsilon);
        let up = linear("intermediate.dense", width, config.inner).activation(config.activation);
        let up = build.linear(x, up);
        let down = build.linear(up, linear("output.dense", config.inner, width));
        let sum = build.add(x, down);
        x = build.layer_norm(&name("output.LayerNorm"), sum, epsilon);
    }
    build.segment();
    // Pooler and classifier are small, so they get no adapters.
    let mut build = build.with_lora(None);
    let pooled = match config.pooling {
        Pooling::FirstToken => {
            let first = build.first_token(x);
            let pooler = Linear::new("bert.pooler.dense", width, width).init_std(STD);
            build.linear(first, pooler.activation(Activation::Tanh))
        }
        Pooling::Mean => build.mean(x),
    };
    let classifier = Linear::new("classifier", width, config.labels).init_std(STD);
    let logits = build.linear(pooled, classifier);
    build.finish(logits)
}
