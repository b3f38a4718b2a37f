//! A packed micro-batch: the tokens of all examples end to end, with offsets. Nothing is padded.

use engine::Error;
use engine::{Example, Input, Target};
use model::{Graph, InputShape, Reduction, Space};

/// Examples, packed.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) examples: usize,
    pub(crate) ids: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    /// A zero for each token.
    pub(crate) firsts: Vec<u32>,
    pub(crate) features: Vec<f32>,
    /// Rows of tokens that carry a target.
    pub(crate) target_rows: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    /// What a target's loss counts in its example's loss.
    pub(crate) target_weights: Vec<f32>,
    tokens: Vec<usize>,
    target_offsets: Vec<usize>,
    each: Vec<usize>,
    /// Offsets of the grids of the graph, by number of pixels.
    grids: Vec<(usize, Vec<usize>)>,
}

impl Batch {
    /// Packs `examples` into this batch, in place of what it held.
    pub(crate) fn pack(
        &mut self,
        graph: &Graph,
        reduction: Reduction,
        examples: &[&Example],
    ) -> Result<(), Error> {
        self.clear();
        self.examples = examples.len();
        for (index, example) in examples.iter().enumerate() {
            self.push(graph, reduction, example)
                .map_err(|reason| Error::Example { index, reason })?;
            self.tokens.push(self.ids.len());
            self.target_offsets.push(self.targets.len());
            self.each.push(index + 1);
        }
        for form in graph.values() {
            if let Space::Grid { height, width } = form.space {
                let pixels = height * width;
                if !self.grids.iter().any(|(known, _)| *known == pixels) {
                    self.grids.push((pixels, Vec::new()));
                }
            }
        }
        for (pixels, offsets) in &mut self.grids {
            offsets.clear();
            offsets.extend((0..=examples.len()).map(|i| i * *pixels));
        }
        Ok(())
    }

    /// About how many bytes the values of the batch and their gradients take.
    pub(crate) fn bytes(&self, graph: &Graph) -> usize {
        let rows = |space: Space| match space {
            Space::Tokens => self.ids.len(),
            Space::Targets => self.targets.len(),
            Space::Examples => self.examples,
            Space::Grid { height, width } => self.examples * height * width,
        };
        graph.bytes(rows)
    }

    /// Packs further tokens of texts that have `past` tokens already. What follows their
    /// last ones is asked.
    pub(crate) fn pack_more(
        &mut self,
        graph: &Graph,
        texts: &[&[u32]],
        past: &[usize],
    ) -> Result<(), Error> {
        self.clear();
        self.examples = texts.len();
        let InputShape::Tokens { vocab, longest } = graph.input() else {
            return Err(Error::Params("the model takes features, not tokens".into()));
        };
        for (index, (text, &past)) in texts.iter().zip(past).enumerate() {
            let refuse = |reason: String| Err(Error::Example { index, reason });
            if text.is_empty() {
                return refuse("the text is empty".into());
            }
            if past + text.len() > longest {
                return refuse(format!(
                    "{} tokens, the model takes at most {longest}",
                    past + text.len()
                ));
            }
            if text.iter().any(|&token| token as usize >= vocab) {
                return refuse(format!("a token is outside the vocabulary of {vocab}"));
            }
            self.ids.extend(*text);
            self.positions.extend(past as u32..(past + text.len()) as u32);
            self.firsts.resize(self.ids.len(), 0);
            self.target_rows.push(self.ids.len() as u32 - 1);
            self.targets.push(0);
            self.target_weights.push(0.0);
            self.tokens.push(self.ids.len());
            self.target_offsets.push(self.targets.len());
            self.each.push(index + 1);
        }
        Ok(())
    }

    fn clear(&mut self) {
        for list in [
            &mut self.ids,
            &mut self.positions,
            &mut self.firsts,
            &mut self.target_rows,
            &mut self.targets,
        ] {
            list.clear();
        }
        for list in [&mut self.tokens, &mut self.target_offsets, &mut self.each] {
            list.clear();
            list.push(0);
        }
        self.features.clear();
        self.target_weights.clear();
    }

    fn push(
        &mut self,
        graph: &Graph,
        reduction: Reduction,
        example: &Example,
    ) -> Result<(), String> {
        let first = self.ids.len();
        match (&example.input, graph.input()) {
            (Input::Tokens(tokens), InputShape::Tokens { vocab, longest }) => {
                if tokens.len() > longest {
                    return Err(format!(
                        "{} tokens, the model takes at most {longest}",
                        tokens.len()
                    ));
                }
                // Which one, and where, is the example's own business.
                if tokens.iter().any(|&token| token as usize >= vocab) {
                    return Err(format!("a token is outside the vocabulary of {vocab}"));
                }
                self.ids.extend(tokens);
                self.positions.extend(0..tokens.len() as u32);
                self.firsts.resize(self.ids.len(), 0);
            }
            (Input::Features(features), InputShape::Features(count)) => {
                if features.len() != count {
                    return Err(format!("expected {count} features, got {}", features.len()));
                }
                self.features.extend(features);
            }
            (Input::Tokens(_), InputShape::Features(_)) => {
                return Err("expected features, got a text".into());
            }
            (Input::Features(_), InputShape::Tokens { .. }) => {
                return Err("expected a text, got features".into());
            }
        }
        let classes = graph.classes();
        let check = |class: u32| {
            if (class as usize) < classes {
                Ok(())
            } else {
                Err(format!("a target is outside the {classes} classes"))
            }
        };
        match (&example.target, graph.shape(graph.logits()).space) {
            (Target::Next(targets), Space::Targets) => {
                if targets.len() != example.len() {
                    return Err(format!("{} targets for {} tokens", targets.len(), example.len()));
                }
                let asked =
                    targets.iter().enumerate().filter(|&(_, &target)| target != Target::NONE);
                let count = asked.clone().count();
                for (place, &target) in asked {
                    check(target)?;
                    self.target_rows.push((first + place) as u32);
                    self.targets.push(target);
                    self.target_weights.push(if reduction == Reduction::Mean {
                        1.0 / count as f32
                    } else {
                        1.0
                    });
                }
            }
            (Target::Class(class), Space::Examples) => {
                check(*class)?;
                self.targets.push(*class);
                // A text of no tokens says nothing about its class.
                self.target_weights.push(if example.is_empty() { 0.0 } else { 1.0 });
            }
            (Target::Next(_), _) => {
                return Err("targets at tokens, the model predicts one class".into());
            }
            (Target::Class(_), _) => return Err("one class, the model predicts tokens".into()),
        }
        Ok(())
    }

    /// Where each example's rows begin, and where the last one's end.
    pub(crate) fn offsets(&self, space: Space) -> &[usize] {
        match space {
            Space::Tokens => &self.tokens,
            Space::Targets => &self.target_offsets,
            Space::Examples => &self.each,
            Space::Grid { height, width } => self
                .grids
                .iter()
                .find(|(pixels, _)| *pixels == height * width)
                .map_or(&[0], |(_, offsets)| offsets),
        }
    }

    /// How many rows.
    pub(crate) fn rows(&self, space: Space) -> usize {
        self.offsets(space).last().copied().unwrap_or(0)
    }

    /// Where each example's targets begin in the list of targets.
    pub(crate) fn target_offsets(&self) -> &[usize] {
        &self.target_offsets
    }
}
