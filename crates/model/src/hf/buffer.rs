//! Tensors of a checkpoint that are no parameters: masks, position numbers and frequencies that
//! older versions of `transformers` saved along.

/// Whether the name is that of a buffer which every model computes by itself.
pub(super) fn is_harmless(name: &str) -> bool {
    let gpt2 = name.strip_prefix("transformer.").unwrap_or(name);
    let bert = name.strip_prefix("bert.").unwrap_or(name);
    is_mask(gpt2) || bert == "embeddings.position_ids" || name.ends_with(".rotary_emb.inv_freq")
}

/// GPT-2's causal mask: `h.N.attn.bias`, `h.N.attn.masked_bias`.
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
            assert!(is_harmless(name), "{name}");
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
            assert!(!is_harmless(name), "{name}");
        }
    }
}
