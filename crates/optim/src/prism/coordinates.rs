//! Tangent vectors at Z = A Bᵀ, in the coordinates of a frame.

use crate::elementwise;
use protocol::Frame;
use tensor::Array;
use tensor::matmul::product;

/// The tangent vector X Q_Bᵀ + Q_A Yᵀ, with Y orthogonal to Q_B.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tangent {
    pub(crate) x: Array,
    pub(crate) y: Array,
}

/// Returns the changes dA and dB of the factors that together are the tangent vector.
///
/// dA Bᵀ + A dBᵀ is the tangent vector. Its part K = Q_Aᵀ X, which either factor could take, is
/// divided evenly: dA = (X − ½ Q_A K) R_B⁻ᵀ and dB = (Y + ½ Q_B Kᵀ) R_A⁻ᵀ.
pub(crate) fn lift(frame: &Frame, tangent: &Tangent) -> (Array, Array) {
    let core = product(frame.left_basis.view().t(), tangent.x.view());
    let mut x = tangent.x.clone();
    add(&mut x, -0.5, &product(frame.left_basis.view(), core.view()));
    let mut y = tangent.y.clone();
    add(&mut y, 0.5, &product(frame.right_basis.view(), core.view().t()));
    (
        product(x.view(), frame.right_inverse.view().t()),
        product(y.view(), frame.left_inverse.view().t()),
    )
}

/// Projects a tangent vector at one point onto the tangent space at another.
pub(crate) fn transport(from: &Frame, to: &Frame, tangent: &Tangent) -> Tangent {
    let (a, b) = (from.left_basis.view(), from.right_basis.view());
    let (to_a, to_b) = (to.left_basis.view(), to.right_basis.view());
    let mut x = product(tangent.x.view(), product(b.t(), to_b).view());
    add(&mut x, 1.0, &product(a, product(tangent.y.view().t(), to_b).view()));
    let mut y = product(b, product(tangent.x.view().t(), to_a).view());
    add(&mut y, 1.0, &product(tangent.y.view(), product(a.t(), to_a).view()));
    let inside = product(to_b.t(), y.view());
    add(&mut y, -1.0, &product(to_b, inside.view()));
    Tangent { x, y }
}

/// Computes y ← y + factor · x.
fn add(y: &mut Array, factor: f32, x: &Array) {
    elementwise::update(y, x, |y, x| factor.mul_add(x, y));
}

#[cfg(test)]
mod tests {
    use super::*;
    use noise::PublicRandom;
    use protocol::Params;

    fn normal(rows: usize, cols: usize, seed: u64) -> Array {
        let mut array = Array::zeros([rows, cols]);
        PublicRandom::from_seed(seed).normals(0, array.data_mut());
        array
    }

    fn dense(frame: &Frame, tangent: &Tangent) -> Array {
        let mut z = product(tangent.x.view(), frame.right_basis.view().t());
        add(&mut z, 1.0, &product(frame.left_basis.view(), tangent.y.view().t()));
        z
    }

    fn close(a: &Array, b: &Array) -> bool {
        a.shape() == b.shape() && a.data().iter().zip(b.data()).all(|(a, b)| (a - b).abs() < 1e-4)
    }

    fn frame(m: usize, n: usize, rank: usize, seed: u64) -> (Params, Frame) {
        let params = Params::new(vec![normal(m, rank, seed), normal(n, rank, seed + 1)]);
        let frame = Frame::new(&params, 0, 1).unwrap();
        (params, frame)
    }

    /// Projects onto the tangent space by definition.
    ///
    /// G ↦ G Q_B Q_Bᵀ + Q_A Q_Aᵀ G (I − Q_B Q_Bᵀ)
    fn project(frame: &Frame, g: &Array) -> Tangent {
        let x = product(g.view(), frame.right_basis.view());
        let mut y = product(g.view().t(), frame.left_basis.view());
        let inside = product(frame.right_basis.view().t(), y.view());
        add(&mut y, -1.0, &product(frame.right_basis.view(), inside.view()));
        Tangent { x, y }
    }

    #[test]
    fn a_lift_gives_the_tangent_vector_back() {
        let (params, frame) = frame(9, 7, 3, 1);
        let tangent = project(&frame, &normal(9, 7, 5));
        let (da, db) = lift(&frame, &tangent);
        let mut z = product(da.view(), params[1].view().t());
        add(&mut z, 1.0, &product(params[0].view(), db.view().t()));
        assert!(close(&z, &dense(&frame, &tangent)));
    }

    #[test]
    fn transport_is_projection() {
        let (_, from) = frame(9, 7, 3, 1);
        let (_, to) = frame(9, 7, 3, 11);
        let tangent = project(&from, &normal(9, 7, 5));
        let moved = transport(&from, &to, &tangent);
        let expected = project(&to, &dense(&from, &tangent));
        assert!(close(&moved.x, &expected.x) && close(&moved.y, &expected.y));
        let stayed = transport(&from, &from, &tangent);
        assert!(close(&stayed.x, &tangent.x) && close(&stayed.y, &tangent.y));
    }
}
