//! Features that were computed before, for several runs on the same images.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Features of images by the SHA-256 of their pixels, in an unnamed temporary file.
///
/// The file has no path by which another process could open it, and is gone when the process ends.
/// A cache changes the time of a run and no bit of a feature.
///
/// ```
/// use data::{FeatureCache, Scattering};
/// use std::sync::Arc;
///
/// let cache = Arc::new(FeatureCache::new(&std::env::temp_dir())?);
/// let scattering = Scattering::new(8, 8, 1)?;
/// let cached = scattering.clone().with_cache(cache.clone());
/// for _ in 0..2 {
///     assert_eq!(cached.features(&[0.5; 64]), scattering.features(&[0.5; 64]));
/// }
/// assert_eq!(cache.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FeatureCache {
    stored: Mutex<Stored>,
}

struct Stored {
    file: File,
    /// The end of the file; `None` after a failed write.
    end: Option<u64>,
    /// Offset and number of values by key.
    places: HashMap<[u8; 32], (u64, usize)>,
}

impl FeatureCache {
    /// Creates an empty cache in `folder`, which must be on a disk that may hold such data.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn new(folder: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        let stored = Stored { file, end: Some(0), places: HashMap::new() };
        Ok(Self { stored: Mutex::new(stored) })
    }

    /// Returns the number of images with features.
    pub fn len(&self) -> usize {
        self.lock().places.len()
    }

    /// Whether there are no features.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the features of an image of this shape, and computes them if they are new.
    ///
    /// Features that cannot be read or written are computed each time.
    pub(crate) fn get(
        &self,
        image: [usize; 3],
        pixels: &[f32],
        compute: impl FnOnce() -> Vec<f32>,
    ) -> Vec<f32> {
        let key = key(image, pixels);
        if let Some(features) = self.lock().read(&key) {
            return features;
        }
        let features = compute();
        self.lock().write(key, &features);
        features
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stored {
    fn read(&mut self, key: &[u8; 32]) -> Option<Vec<f32>> {
        let &(offset, count) = self.places.get(key)?;
        let mut bytes = vec![0; 4 * count];
        self.file.seek(SeekFrom::Start(offset)).ok()?;
        self.file.read_exact(&mut bytes).ok()?;
        Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }

    fn write(&mut self, key: [u8; 32], features: &[f32]) {
        let Some(end) = self.end else { return };
        // Another thread may have been faster.
        if self.places.contains_key(&key) {
            return;
        }
        let bytes: Vec<u8> = features.iter().flat_map(|x| x.to_le_bytes()).collect();
        let write = |file: &mut File| -> io::Result<()> {
            file.seek(SeekFrom::Start(end))?;
            file.write_all(&bytes)
        };
        self.end = write(&mut self.file).is_ok().then(|| end + bytes.len() as u64);
        if self.end.is_some() {
            self.places.insert(key, (end, features.len()));
        }
    }
}

/// Hashes an image with its shape.
fn key(image: [usize; 3], pixels: &[f32]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    image.iter().for_each(|&size| hasher.update((size as u64).to_le_bytes()));
    let bytes: Vec<u8> = pixels.iter().flat_map(|x| x.to_le_bytes()).collect();
    hasher.update(&bytes);
    hasher.finalize().into()
}

/// Features may be private.
impl fmt::Debug for FeatureCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeatureCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> FeatureCache {
        FeatureCache::new(&std::env::temp_dir()).unwrap()
    }

    /// Features come back with all bits, in any order, and are computed once for each image.
    #[test]
    fn features_are_computed_once() {
        let cache = cache();
        let image = |i: usize| vec![i as f32, -0.0];
        let features = |i: usize| (0..i).map(|j| f32::from_bits((i << 20 | j) as u32)).collect();
        for i in 0..50 {
            let new: Vec<f32> = cache.get([1, 2, 1], &image(i), || features(i));
            assert_eq!(new.len(), i);
        }
        for i in (0..50).rev() {
            let known = cache.get([1, 2, 1], &image(i), || panic!("computed again"));
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&known), bits(&features(i)));
        }
        assert_eq!(cache.len(), 50);
    }

    /// Images of another shape, and images that differ in the sign of a zero, are other images.
    #[test]
    fn other_images_have_other_features() {
        let cache = cache();
        let images = [([1, 2, 1], [0.0, 1.0]), ([2, 1, 1], [0.0, 1.0]), ([1, 2, 1], [-0.0, 1.0])];
        for (i, (shape, pixels)) in images.iter().enumerate() {
            assert_eq!(cache.get(*shape, pixels, || vec![i as f32]), [i as f32]);
        }
    }

    /// After a failed write, features are computed each time.
    #[test]
    fn a_full_disk_costs_time_only() {
        let cache = cache();
        assert_eq!(cache.get([1, 1, 1], &[1.0], || vec![5.0]), [5.0]);
        let read_only = tempfile::NamedTempFile::new().unwrap();
        cache.lock().file = File::open(read_only.path()).unwrap();
        for _ in 0..2 {
            // The file that replaced the first one has no values to read.
            assert_eq!(cache.get([1, 1, 1], &[1.0], || vec![6.0]), [6.0]);
            assert_eq!(cache.get([1, 1, 1], &[2.0], || vec![7.0]), [7.0]);
        }
        assert_eq!(cache.len(), 1);
    }
}
