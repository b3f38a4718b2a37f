//! The secret of a run, shared by its processes.

use crate::{Error, Ranks};
use noise::Randomness;
use zeroize::Zeroizing;

/// Takes a fresh secret from the operating system of rank 0 and sends it to the other ranks.
///
/// Anyone who can read the traffic between the processes learns the secret, as well as the sums.
///
/// # Errors
/// If the system provides no randomness, or a process is lost.
pub fn shared_randomness(ranks: &Ranks) -> Result<Randomness, Error> {
    let mut bytes = vec![0; 32];
    if ranks.is_first() {
        bytes.copy_from_slice(&*Randomness::system_secret()?);
    }
    let received = Zeroizing::new(ranks.broadcast(bytes)?);
    let length = |_| Error::Length { rank: 0, expected: 32, got: received.len() };
    let secret = Zeroizing::new(<[u8; 32]>::try_from(&received[..]).map_err(length)?);
    Ok(Randomness::from_secret(*secret))
}
