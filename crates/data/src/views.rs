//! Augmented views of an image: fixed, public transforms.
//!
//! All views of an image are parts of one record: the mean of their gradients is clipped once, so
//! views cost no privacy. Every image has the same transforms. They do not depend on its content
//! or its position, so a record changes only its own views.

use crate::{Content, Record};
use serde::{Deserialize, Serialize};

/// Which views of an image are trained on, in addition to the image itself.
///
/// ```
/// use data::{Content, Label, Record, Views};
///
/// let pixels = vec![0.0, 0.2, 0.4, 0.6];
/// let content = Content::Image { pixels, height: 2, width: 2, channels: 1, label: Label::Index(0) };
/// let views = Views::Flip.of(&Record { content, group: None, line: 1 }).unwrap();
/// let Content::Image { pixels, .. } = &views[1].content else { unreachable!() };
/// assert_eq!(*pixels, [0.2, 0.0, 0.6, 0.4]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Views {
    /// None: the image alone.
    #[default]
    None,
    /// Its mirror image: 2 views.
    Flip,
    /// Shifts by two pixels in four directions: 5 views.
    Shift,
    /// The shifts of the image and of its mirror image: 10 views.
    FlipShift,
}

/// Rows and columns by which an image is moved.
const SHIFTS: [(isize, isize); 5] = [(0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)];

impl Views {
    /// Returns the number of views of an image, itself included.
    pub fn count(self) -> usize {
        self.transforms().len()
    }

    /// Returns a record for each view, the image itself first; `None` if the record is no image.
    pub fn of(self, record: &Record) -> Option<Vec<Record>> {
        let Content::Image { pixels, height, width, channels, label } = &record.content else {
            return None;
        };
        let shape = [*height, *width, *channels];
        let view = |transform: &Transform| Record {
            content: Content::Image {
                pixels: transform.apply(pixels, shape),
                height: *height,
                width: *width,
                channels: *channels,
                label: label.clone(),
            },
            group: record.group.clone(),
            line: record.line,
        };
        Some(self.transforms().iter().map(view).collect())
    }

    fn transforms(self) -> Vec<Transform> {
        let (flips, shifts): (&[bool], &[(isize, isize)]) = match self {
            Self::None => (&[false], &SHIFTS[..1]),
            Self::Flip => (&[false, true], &SHIFTS[..1]),
            Self::Shift => (&[false], &SHIFTS),
            Self::FlipShift => (&[false, true], &SHIFTS),
        };
        let of_shift = |&(down, right): &(isize, isize)| {
            flips.iter().map(move |&flip| Transform { flip, down, right })
        };
        shifts.iter().flat_map(of_shift).collect()
    }
}

/// A mirror image, then a shift.
struct Transform {
    flip: bool,
    down: isize,
    right: isize,
}

impl Transform {
    /// Transforms an image. Pixels beyond the border are those of the border.
    fn apply(&self, pixels: &[f32], [height, width, channels]: [usize; 3]) -> Vec<f32> {
        let mut view = Vec::with_capacity(pixels.len());
        let source = |at: usize, shift: isize, length: usize| {
            at.saturating_add_signed(-shift).min(length.saturating_sub(1))
        };
        for y in 0..height {
            let row = source(y, self.down, height);
            for x in 0..width {
                let column = source(x, self.right, width);
                let column = if self.flip { width - 1 - column } else { column };
                let first = (row * width + column) * channels;
                view.extend_from_slice(&pixels[first..first + channels]);
            }
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Label;

    fn image(height: usize, width: usize, channels: usize) -> Record {
        let pixels = (0..height * width * channels).map(|i| i as f32).collect();
        let content = Content::Image { pixels, height, width, channels, label: Label::Index(3) };
        Record { content, group: Some("p".into()), line: 7 }
    }

    fn pixels(record: &Record) -> &[f32] {
        let Content::Image { pixels, .. } = &record.content else { panic!("an image") };
        pixels
    }

    #[test]
    fn the_image_itself_comes_first_and_all_views_differ() {
        let image = image(5, 6, 3);
        for (views, count) in
            [(Views::None, 1), (Views::Flip, 2), (Views::Shift, 5), (Views::FlipShift, 10)]
        {
            let all = views.of(&image).unwrap();
            assert_eq!((all.len(), views.count()), (count, count));
            assert!(all[0] == image);
            for (i, view) in all.iter().enumerate() {
                assert!((view.line, view.group.as_deref()) == (7, Some("p")));
                assert!(all[..i].iter().all(|other| other != view), "{views:?} {i}");
            }
        }
        let text = Content::Labelled { text: "a".into(), label: "b".into() };
        assert!(Views::Flip.of(&Record { content: text, group: None, line: 1 }).is_none());
    }

    /// Against the definition, pixel by pixel.
    #[test]
    fn shifts_repeat_the_border() {
        let (height, width, channels) = (4, 5, 2);
        let image = image(height, width, channels);
        let views = Views::FlipShift.of(&image).unwrap();
        for (k, view) in views.iter().enumerate() {
            let (down, right) = SHIFTS[k / 2];
            for (y, x, c) in (0..height)
                .flat_map(|y| (0..width).map(move |x| (y, x)))
                .flat_map(|(y, x)| (0..channels).map(move |c| (y, x, c)))
            {
                let from_y = (y as isize - down).clamp(0, height as isize - 1) as usize;
                let from_x = (x as isize - right).clamp(0, width as isize - 1) as usize;
                let from_x = if k % 2 == 1 { width - 1 - from_x } else { from_x };
                let index = |y: usize, x: usize| (y * width + x) * channels + c;
                assert_eq!(pixels(view)[index(y, x)], index(from_y, from_x) as f32);
            }
        }
    }

    #[test]
    fn images_without_pixels_have_views() {
        for (height, width) in [(0, 0), (0, 3), (3, 0), (1, 1)] {
            let image = image(height, width, 1);
            let views = Views::FlipShift.of(&image).unwrap();
            assert!(views.iter().all(|view| pixels(view).len() == height * width));
        }
    }
}
