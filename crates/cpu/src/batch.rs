//! A packed micro-batch: the rows of all parts of all examples are concatenated, without padding.
//!
//! A model computes each part by itself. Norms and weights are those of examples, whose parts are
//! contiguous, so an example's gradient is the sum over the rows of all its parts.

use engine::{Error, Example, Input, Part, Target};
use model::{Graph, InputShape, Loss, Reduction, Space};
use std::borrow::Cow;
use std::ops::Range;

/// A packed micro-batch.
#[derive(Default)]
pub(crate) struct Batch {
    /// Token ids of all examples.
    pub(crate) ids: Vec<u32>,
    /// Position of each token in its part.
    pub(crate) positions: Vec<u32>,
    /// Segment of each token: always 0.
    pub(crate) segment_ids: Vec<u32>,
    /// Features of all examples.
    pub(crate) features: Vec<f32>,
    /// Rows of the tokens that have a target.
    pub(crate) target_rows: Vec<u32>,
    /// Tokens or classes that are targets; empty if the loss has other targets.
    pub(crate) targets: Vec<u32>,
    /// Targets of the other losses: a number for each output of each row.
    pub(crate) target_values: Vec<f32>,
    /// Weight of each target's loss in the loss of its example.
    pub(crate) target_weights: Vec<f32>,
    /// First part of each example, and the number of all parts at the end.
    example_parts: Vec<usize>,
    token_offsets: Vec<usize>,
    target_offsets: Vec<usize>,
    /// The parts themselves: 0, 1, 2, …
    part_offsets: Vec<usize>,
    /// Offsets of images, by number of pixels.
    image_offsets: Vec<(usize, Vec<usize>)>,
}

impl Batch {
    /// Replaces the batch by these examples.
    pub(crate) fn pack(
        &mut self,
        graph: &Graph,
        reduction: Reduction,
        examples: &[&Example],
    ) -> Result<(), Error> {
        self.clear();
        for (index, example) in examples.iter().enumerate() {
            for part in example.parts() {
                self.push(graph, reduction, part, example.part_weight())
                    .map_err(|reason| Error::Example { index, reason })?;
                self.end_part();
            }
            self.end_example();
        }
        for shape in graph.values() {
            if let Space::Grid { height, width } = shape.space {
                let pixels = height * width;
                if !self.image_offsets.iter().any(|(known, _)| *known == pixels) {
                    self.image_offsets.push((pixels, Vec::new()));
                }
            }
        }
        for (pixels, offsets) in &mut self.image_offsets {
            offsets.clear();
            offsets.extend(self.part_offsets.iter().map(|i| i * *pixels));
        }
        Ok(())
    }

    /// Estimates the bytes of all values and gradients of the batch.
    pub(crate) fn bytes(&self, graph: &Graph) -> usize {
        let rows = |space: Space| match space {
            Space::Tokens => self.ids.len(),
            Space::Targets => self.target_weights.len(),
            Space::Parts => self.parts(),
            Space::Grid { height, width } => self.parts() * height * width,
        };
        graph.bytes(rows)
    }

    /// Replaces the batch by further tokens of texts, of which `past` tokens were decoded before.
    ///
    /// The last token of each text has a target, so that its logits are computed.
    pub(crate) fn pack_continuations(
        &mut self,
        graph: &Graph,
        texts: &[&[u32]],
        past: &[usize],
    ) -> Result<(), Error> {
        self.clear();
        let InputShape::Tokens { vocab, max_length } = graph.input() else {
            return Err(Error::Params(
                "decoding: expected a model of tokens, got a model of features".into(),
            ));
        };
        for (index, (text, &past)) in texts.iter().zip(past).enumerate() {
            let refuse = |reason: String| Err(Error::Example { index, reason });
            if text.is_empty() {
                return refuse("the text is empty".into());
            }
            if past + text.len() > max_length {
                return refuse(format!(
                    "expected at most {max_length} tokens, got {}",
                    past + text.len()
                ));
            }
            if text.iter().any(|&token| token as usize >= vocab) {
                return refuse(format!("a token id is outside the vocabulary of {vocab} tokens"));
            }
            self.ids.extend(*text);
            self.positions.extend(past as u32..(past + text.len()) as u32);
            self.segment_ids.resize(self.ids.len(), 0);
            self.target_rows.push(self.ids.len() as u32 - 1);
            self.targets.push(0);
            self.target_weights.push(0.0);
            self.end_part();
            self.end_example();
        }
        Ok(())
    }

    /// Returns the number of examples.
    pub(crate) fn examples(&self) -> usize {
        self.example_parts.len().saturating_sub(1)
    }

    /// Returns the number of parts of all examples.
    pub(crate) fn parts(&self) -> usize {
        self.part_offsets.len().saturating_sub(1)
    }

    /// Returns the parts of an example.
    pub(crate) fn parts_of(&self, example: usize) -> Range<usize> {
        self.example_parts[example]..self.example_parts[example + 1]
    }

    fn end_part(&mut self) {
        self.token_offsets.push(self.ids.len());
        self.target_offsets.push(self.target_weights.len());
        self.part_offsets.push(self.part_offsets.len());
    }

    fn end_example(&mut self) {
        self.example_parts.push(self.parts());
    }

    fn clear(&mut self) {
        for list in [
            &mut self.ids,
            &mut self.positions,
            &mut self.segment_ids,
            &mut self.target_rows,
            &mut self.targets,
        ] {
            list.clear();
        }
        for list in [
            &mut self.example_parts,
            &mut self.token_offsets,
            &mut self.target_offsets,
            &mut self.part_offsets,
        ] {
            list.clear();
            list.push(0);
        }
        for list in [&mut self.features, &mut self.target_values, &mut self.target_weights] {
            list.clear();
        }
    }

    /// Appends a part, whose loss has this weight. Returns why it does not fit the model.
    fn push(
        &mut self,
        graph: &Graph,
        reduction: Reduction,
        part: &Part,
        weight: f32,
    ) -> Result<(), String> {
        let first = self.ids.len();
        match (&part.input, graph.input()) {
            (Input::Tokens(tokens), InputShape::Tokens { vocab, max_length }) => {
                if tokens.len() > max_length {
                    return Err(format!(
                        "expected at most {max_length} tokens, got {}",
                        tokens.len()
                    ));
                }
                // The message must not reveal the token.
                if tokens.iter().any(|&token| token as usize >= vocab) {
                    return Err(format!("a token id is outside the vocabulary of {vocab} tokens"));
                }
                self.ids.extend(tokens);
                self.positions.extend(0..tokens.len() as u32);
                self.segment_ids.resize(self.ids.len(), 0);
            }
            (Input::Features(features), InputShape::Features(count)) => {
                if features.len() != count {
                    return Err(format!("expected {count} features, got {}", features.len()));
                }
                self.features.extend(features);
            }
            (Input::Tokens(_), InputShape::Features(_)) => {
                return Err("expected features, got tokens".into());
            }
            (Input::Features(_), InputShape::Tokens { .. }) => {
                return Err("expected tokens, got features".into());
            }
        }
        self.push_target(graph, reduction, part, weight, first)
    }

    /// Appends the target of a part whose tokens begin at row `first`.
    fn push_target(
        &mut self,
        graph: &Graph,
        reduction: Reduction,
        part: &Part,
        weight: f32,
        first: usize,
    ) -> Result<(), String> {
        let classes = graph.classes();
        let check = |class: u32| {
            if (class as usize) < classes {
                Ok(())
            } else {
                Err(format!("a target is outside the {classes} classes"))
            }
        };
        // An empty part has loss 0.
        let part_weight = if part.input.is_empty() { 0.0 } else { weight };
        match (&part.target, graph.shape(graph.logits()).space, graph.loss()) {
            (Target::Next(targets), Space::Targets, Loss::CrossEntropy) => {
                if targets.len() != part.input.len() {
                    return Err(format!(
                        "expected {} targets, one for each token, got {}",
                        part.input.len(),
                        targets.len()
                    ));
                }
                let present =
                    targets.iter().enumerate().filter(|&(_, &target)| target != Target::NONE);
                let count = present.clone().count();
                for (row, &target) in present {
                    check(target)?;
                    self.target_rows.push((first + row) as u32);
                    self.targets.push(target);
                    self.target_weights.push(if reduction == Reduction::Mean {
                        weight / count as f32
                    } else {
                        weight
                    });
                }
            }
            (Target::Class(class), Space::Parts, Loss::CrossEntropy) => {
                check(*class)?;
                self.targets.push(*class);
                self.target_weights.push(part_weight);
            }
            (Target::Labels(labels), Space::Parts, Loss::BinaryCrossEntropy) => {
                labels.iter().try_for_each(|&label| check(label))?;
                let row = self.target_values.len();
                self.target_values.resize(row + classes, 0.0);
                labels.iter().for_each(|&label| self.target_values[row + label as usize] = 1.0);
                self.target_weights.push(part_weight);
            }
            (Target::Value(value), Space::Parts, Loss::SquaredError) => {
                if classes != 1 {
                    return Err(format!("squared error: expected 1 output, got {classes}"));
                }
                self.target_values.push(*value);
                self.target_weights.push(part_weight);
            }
            (target, space, loss) => {
                let expected = match (space, loss) {
                    (Space::Targets, Loss::CrossEntropy) => "a target for each token",
                    (_, Loss::CrossEntropy) => "a class",
                    (_, Loss::BinaryCrossEntropy) => "labels",
                    (_, Loss::SquaredError) => "a number",
                };
                let got = match target {
                    Target::Next(_) => "a target for each token",
                    Target::Class(_) => "a class",
                    Target::Labels(_) => "labels",
                    Target::Value(_) => "a number",
                };
                return Err(format!("expected {expected}, got {got}"));
            }
        }
        Ok(())
    }

    /// Returns the first row of each part, and the number of all rows at the end.
    pub(crate) fn offsets(&self, space: Space) -> &[usize] {
        match space {
            Space::Tokens => &self.token_offsets,
            Space::Targets => &self.target_offsets,
            Space::Parts => &self.part_offsets,
            Space::Grid { height, width } => self
                .image_offsets
                .iter()
                .find(|(pixels, _)| *pixels == height * width)
                .map_or(&[0], |(_, offsets)| offsets),
        }
    }

    /// Returns the first row of each example, and the number of all rows at the end.
    pub(crate) fn example_offsets(&self, space: Space) -> Cow<'_, [usize]> {
        let offsets = self.offsets(space);
        if self.parts() == self.examples() {
            return Cow::Borrowed(offsets);
        }
        Cow::Owned(self.example_parts.iter().map(|&part| offsets[part]).collect())
    }

    /// Returns the rows of an example.
    pub(crate) fn rows_of(&self, space: Space, example: usize) -> Range<usize> {
        let (offsets, parts) = (self.offsets(space), self.parts_of(example));
        offsets[parts.start]..offsets[parts.end]
    }

    /// Returns the number of rows of a space.
    pub(crate) fn rows(&self, space: Space) -> usize {
        self.offsets(space).last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::Combination;
    use model::Mlp;
    use model::activation::Activation;

    /// The memory of an example is that of all its parts.
    #[test]
    fn memory_is_estimated_for_all_parts() {
        let mlp = Mlp { input: 3, hidden: vec![4], classes: 2, activation: Activation::Tanh };
        let graph = mlp.graph();
        let bytes = |examples: &[&Example]| {
            let mut batch = Batch::default();
            batch.pack(&graph, Reduction::Mean, examples).unwrap();
            batch.bytes(&graph)
        };
        let part = Example::features(vec![0.5; 3], 1);
        let combined = Example::combined(vec![part.clone(); 5], Combination::Mean).unwrap();
        assert_eq!(bytes(&[&combined]), bytes(&[&part; 5]));
        assert_eq!(bytes(&[&combined, &part]), bytes(&[&part; 6]));
    }
}
