//! Tensors of a checkpoint that are not parameters: masks, position ids and rotary frequencies,
//! which older versions of `transformers` saved.

/// Returns whether a name is that of a buffer, which the model computes itself.
pub(super) fn is_buffer(name: &str) -> bool {
    let gpt2 = name.strip_prefix("transformer.").unwrap_or(name);
    let bert = name.strip_prefix("bert.").unwrap_or(name);
    is_mask(gpt2) || bert == "embeddings.position_ids" || name.ends_with(".rotary_emb.inv_freq")
}

/// Returns whether a name is that of a causal mask of GPT-2, such as `h.0.attn.bias`.
fn is_mask(name: &str) -> bool {
    let Some((layer, rest)) = name.strip_prefix("h.").and_then(|rest| rest.split_once('.')) else {
        return false;
    };
    !layer.is_empty()
        && layer.bytes().all(|b| b.is_ascii_digit())
        && matches!(rest, "attn.bias" | "attn.masked_bias")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_not_buffers() {
        for name in [
            "h.0.attn.bias",
            "transformer.h.11.attn.masked_bias",
            "model.layers.3.self_attn.rotary_emb.inv_freq",
            "bert.embeddings.position_ids",
            "embeddings.position_ids",
        ] {
            assert!(is_buffer(name), "{name}");
        }
        for name in [
            "h.0.attn.c_attn.bias",
            "h..attn.bias",
            "h.x.attn.bias",
            "x.h.0.attn.bias",
            "h.0.attn.bias.weight",
            "lm_head.weight",
            "bert.embeddings.position_embeddings.weight",
        ] {
            assert!(!is_buffer(name), "{name}");
        }
    }
}
