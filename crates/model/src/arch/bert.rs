//! BERT (Devlin et al. 2019): post-norm encoder, sight in both directions, a class from the first
//! token.

use crate::builder::{Builder, Lora};
use crate::graph::{Graph, Init};
use crate::hf::BertConfig;
use tensor::activation::Activation;
use tensor::attention::{AttentionMask, Heads};

const STD: f32 = 0.02;

pub(super) fn graph(config: &BertConfig, lora: Option<Lora>) -> Graph {
    let BertConfig { width, epsilon, .. } = *config;
    let mut build = Builder::texts(config.vocab, config.positions).with_lora(lora);
    let table = |build: &mut Builder, name: &str, rows: usize| {
        build.param(
            format!("bert.embeddings.{name}_embeddings.weight"),
            [rows, width],
            Init::Normal { std: STD },
        )
    };
    let words = table(&mut build, "word", config.vocab);
    let places = table(&mut build, "position", config.positions);
    let types = table(&mut build, "token_type", config.types);
    let (words, places, types) =
        (build.tokens(words), build.positions(places), build.first_type(types));
    let x = build.add(words, types);
    let x = build.add(x, places);
    let mut x = build.layer_norm("bert.embeddings.LayerNorm", x, epsilon);
    let heads = Heads {
        queries: config.heads,
        keys: config.heads,
        dim: width / config.heads,
        mask: AttentionMask::Full,
    };
    for layer in 0..config.layers {
        build.cut();
        let name = |part: &str| format!("bert.encoder.layer.{layer}.{part}");
        let [q, k, v] = ["query", "key", "value"]
            .map(|part| build.map(&name(&format!("attention.self.{part}")), width, width, STD));
        let qkv = build.linear(x, &[q, k, v], None);
        let mixed = build.attention(heads, qkv);
        let out = build.map(&name("attention.output.dense"), width, width, STD);
        let out = build.linear(mixed, &[out], None);
        let sum = build.add(x, out);
        x = build.layer_norm(&name("attention.output.LayerNorm"), sum, epsilon);
        let up = build.map(&name("intermediate.dense"), width, config.inner, STD);
        let up = build.linear(x, &[up], Some(config.activation));
        let down = build.map(&name("output.dense"), config.inner, width, STD);
        let down = build.linear(up, &[down], None);
        let sum = build.add(x, down);
        x = build.layer_norm(&name("output.LayerNorm"), sum, epsilon);
    }
    build.cut();
    // The head is small and new: it is trained as it is.
    let mut build = build.with_lora(None);
    let first = build.first_token(x);
    let pooler = build.map("bert.pooler.dense", width, width, STD);
    let pooled = build.linear(first, &[pooler], Some(Activation::Tanh));
    let classifier = build.map("classifier", width, config.labels, STD);
    let logits = build.linear(pooled, &[classifier], None);
    build.finish(logits)
}
