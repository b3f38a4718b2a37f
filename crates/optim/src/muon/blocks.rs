//! Which tensors Muon orthogonalises, and which clip block each tensor is in.

use crate::{Auto, GradientNoise};
use protocol::{Blocks, Bound, Positive, Refused, Role, Trainable};
use serde::{Deserialize, Serialize};

/// Which tensors are orthogonalised, and which have a clip block of their own.
///
/// All tensors without a block of their own share the auxiliary block. For GPT-2 with its own head
/// (48 hidden matrices, 2 embedding tables, the head and the vectors):
///
/// | grouping | clip blocks | orthogonalised |
/// |---|---|---|
/// | `hidden` | 49 | 48 |
/// | `paper` | 49 | 51 |
/// | `all` | 52 | 51 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Hidden weights are orthogonalised and have their own blocks.
    ///
    /// A kernel of a convolution is a matrix of out × in·height·width elements.
    Hidden,
    /// As in the paper (Kim and Fan 2026, Appendix D).
    ///
    /// Every tensor of two or more dimensions is orthogonalised; hidden weights have their own
    /// blocks.
    Paper,
    /// Every tensor of two or more dimensions is orthogonalised and has its own block.
    #[serde(rename = "all")]
    AllMatrices,
}

impl Group {
    /// Whether a tensor is orthogonalised.
    fn orthogonalises(self, tensor: &Trainable) -> bool {
        match self {
            Self::Hidden => is_hidden(tensor),
            Self::Paper | Self::AllMatrices => tensor.shape.len() >= 2,
        }
    }

    /// Whether a tensor has a clip block of its own.
    fn has_own_block(self, tensor: &Trainable) -> bool {
        match self {
            Self::Hidden | Self::Paper => is_hidden(tensor),
            Self::AllMatrices => tensor.shape.len() >= 2,
        }
    }
}

fn is_hidden(tensor: &Trainable) -> bool {
    !matches!(tensor.role, Role::Table | Role::Head | Role::Vector)
}

/// The name of the auxiliary block in a [`BlockRule`].
pub const AUXILIARY: &str = "auxiliary";

/// Clip bound and noise share of the blocks of some tensors.
///
/// The first rule that matches a block applies to it. From the joint noise multiplier σ, a block of
/// weight w gets σ √(Σ w)/√w, where the sum is over all blocks. So a larger weight means less
/// noise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockRule {
    /// The names of the tensors, in which `*` stands for any characters; or "auxiliary".
    pub tensors: String,
    /// The clip bound C_W; that of `optimizer.clip` by default.
    #[serde(default)]
    pub clip: Auto<f64>,
    /// The weight w_W of the block; 1 by default.
    #[serde(default)]
    pub weight: Auto<f64>,
}

/// Which tensors are orthogonalised, the block of each tensor, and the bound of each block.
pub(super) struct Assignment {
    /// The tensors that are orthogonalised, in ascending order.
    pub(super) matrices: Vec<usize>,
    pub(super) blocks: Blocks,
    pub(super) bounds: Vec<Bound>,
}

/// Assigns tensors to update rules and clip blocks.
///
/// # Errors
/// If no tensor is orthogonalised, or a rule is invalid or matches no block.
pub(super) fn assign(
    group: Group,
    rules: &[BlockRule],
    noise: &GradientNoise,
    tensors: &[Trainable],
) -> Result<Assignment, Refused> {
    let matrices: Vec<usize> =
        (0..tensors.len()).filter(|&k| group.orthogonalises(&tensors[k])).collect();
    if matrices.is_empty() {
        return Err(Refused::Query(
            "Muon orthogonalises matrices, and none of the trained tensors is a hidden one; \
             optimizer.muon_group = \"all\" includes tables and the head"
                .into(),
        ));
    }
    let own: Vec<usize> =
        (0..tensors.len()).filter(|&k| group.has_own_block(&tensors[k])).collect();
    let mut of = vec![own.len(); tensors.len()];
    own.iter().enumerate().for_each(|(block, &k)| of[k] = block);
    let blocks = Blocks::new(of).ok_or_else(|| Refused::Query("blocks with gaps".into()))?;
    let mut names: Vec<&str> = own.iter().map(|&k| &tensors[k].name[..]).collect();
    names.resize(blocks.count(), AUXILIARY);
    let mut matched = vec![false; rules.len()];
    let mut shares = Vec::with_capacity(names.len());
    for name in names {
        let rule = rules.iter().position(|rule| matches(&rule.tensors, name));
        if let Some(rule) = rule {
            matched[rule] = true;
        }
        let rule = rule.map(|rule| &rules[rule]);
        let clip = rule.map_or(noise.bound.clip.get(), |rule| rule.clip.or(noise.bound.clip.get()));
        let weight = rule.map_or(1.0, |rule| rule.weight.or(1.0));
        shares.push((
            Positive::new("optimizer.blocks: clip", clip)?,
            Positive::new("optimizer.blocks: weight", weight)?,
        ));
    }
    if let Some((rule, _)) = rules.iter().zip(matched).find(|(_, matched)| !matched) {
        return Err(Refused::Query(format!(
            "optimizer.blocks: tensors = {:?}: expected a pattern that matches a clip block which \
             no rule before it matches, such as {:?}, or {AUXILIARY:?}",
            rule.tensors, tensors[matrices[0]].name
        )));
    }
    let bounds = Bound::shared(noise.bound.sigma, &shares)?;
    Ok(Assignment { matrices, blocks, bounds })
}

/// Whether a name matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    (0..=name.len()).filter(|&at| name.is_char_boundary(at)).any(|at| matches(rest, &name[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::Clipping;

    /// The tensors of GPT-2 with its own head.
    fn gpt2() -> Vec<Trainable> {
        let tensor = |name: String, shape: &[usize], role: Role| Trainable::new(name, shape, role);
        let mut tensors = vec![
            tensor("wte.weight".into(), &[8, 2], Role::Table),
            tensor("wpe.weight".into(), &[4, 2], Role::Table),
        ];
        for layer in 0..12 {
            for part in ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"] {
                tensors.push(tensor(format!("h.{layer}.{part}.weight"), &[2, 2], Role::Hidden));
                tensors.push(tensor(format!("h.{layer}.{part}.bias"), &[2], Role::Vector));
            }
            tensors.push(tensor(format!("h.{layer}.ln_1.weight"), &[2], Role::Vector));
        }
        tensors.push(tensor("lm_head.weight".into(), &[8, 2], Role::Head));
        tensors
    }

    fn noise(clip: f64, sigma: f64) -> GradientNoise {
        GradientNoise { bound: Bound::new(clip, sigma).unwrap(), clipping: Clipping::Cut }
    }

    #[test]
    fn blocks_and_updates_of_gpt2_are_counted_as_documented() {
        let tensors = gpt2();
        for (group, blocks, matrices) in
            [(Group::Hidden, 49, 48), (Group::Paper, 49, 51), (Group::AllMatrices, 52, 51)]
        {
            let all = assign(group, &[], &noise(0.1, 0.7189), &tensors).unwrap();
            assert_eq!((all.blocks.count(), all.matrices.len()), (blocks, matrices), "{group:?}");
            let sigma = 0.7189 * (blocks as f64).sqrt();
            assert!(all.bounds.iter().all(|b| (b.sigma.get() - sigma).abs() < 1e-12));
        }
        // In the paper's grouping the tables share a block with the head and the vectors.
        let paper = assign(Group::Paper, &[], &noise(0.1, 1.0), &tensors).unwrap();
        let last = tensors.len() - 1;
        assert!(paper.matrices.contains(&0) && paper.matrices.contains(&last));
        assert_eq!((paper.blocks.of(0), paper.blocks.of(last), paper.blocks.of(3)), (48, 48, 48));
    }

    #[test]
    fn rules_set_bounds_and_shares() {
        let rule = |tensors: &str, clip: Auto<f64>, weight: Auto<f64>| BlockRule {
            tensors: tensors.into(),
            clip,
            weight,
        };
        let rules = [
            rule("h.0.*", Auto::Value(0.5), Auto::Value(4.0)),
            rule("*.mlp.*", Auto::Auto, Auto::Value(2.0)),
            rule(AUXILIARY, Auto::Value(0.02), Auto::Auto),
        ];
        let tensors = gpt2();
        let all = assign(Group::Paper, &rules, &noise(0.1, 0.7), &tensors).unwrap();
        let at = |name: &str| {
            let k = tensors.iter().position(|tensor| tensor.name == name).unwrap();
            all.bounds[all.blocks.of(k)]
        };
        // 4 blocks of weight 4, 22 of weight 2, 22 of weight 1 and the auxiliary one.
        let total: f64 = 4.0 * 4.0 + 22.0 * 2.0 + 22.0 + 1.0;
        for (name, clip, weight) in [
            ("h.0.mlp.c_fc.weight", 0.5, 4.0),
            ("h.7.mlp.c_fc.weight", 0.1, 2.0),
            ("h.7.attn.c_proj.weight", 0.1, 1.0),
            ("wte.weight", 0.02, 1.0),
            ("h.0.ln_1.weight", 0.02, 1.0),
        ] {
            let bound = at(name);
            assert_eq!(bound.clip.get(), clip, "{name}");
            let sigma = 0.7 * (total / weight).sqrt();
            assert!((bound.sigma.get() - sigma).abs() < 1e-12, "{name}");
        }
        let joint: f64 = all.bounds.iter().map(|bound| bound.sigma.get().powi(-2)).sum();
        assert!((joint * 0.7 * 0.7 - 1.0).abs() < 1e-12);
        for bad in [
            rule("nothing", Auto::Auto, Auto::Auto),
            // Tables have no block of their own here.
            rule("wte.weight", Auto::Auto, Auto::Auto),
            rule("h.0.*", Auto::Value(0.0), Auto::Auto),
            rule("h.0.*", Auto::Auto, Auto::Value(f64::NAN)),
        ] {
            assert!(assign(Group::Paper, &[bad], &noise(0.1, 0.7), &tensors).is_err());
        }
        // A rule that an earlier one hides entirely is an error too.
        let hidden = [
            rule("h.*", Auto::Auto, Auto::Value(2.0)),
            rule("h.0.*", Auto::Auto, Auto::Value(3.0)),
        ];
        assert!(assign(Group::Paper, &hidden, &noise(0.1, 0.7), &tensors).is_err());
    }

    #[test]
    fn stars_match_any_characters() {
        for (pattern, name, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcd", false),
            ("*.mlp.*", "h.1.mlp.c", true),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxax", false),
            ("ä*", "äö", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
