//! The secret of a run, shared by its processes.

use noise::Randomness;
use protocol::Refused;
use ranks::Ranks;
use zeroize::Zeroizing;

/// Takes a fresh secret from the operating system of rank 0 and sends it to the other ranks.
///
/// Anyone who can read the traffic between the processes learns the secret, as well as the sums.
///
/// # Errors
/// If the system provides no randomness, or a process is lost.
pub fn shared_randomness(ranks: &Ranks) -> Result<Randomness, Refused> {
    let mut bytes = vec![0; 32];
    if ranks.is_first() {
        bytes.copy_from_slice(&*Randomness::system_secret().map_err(failed)?);
    }
    let received =
        Zeroizing::new(ranks.first_says(bytes).map_err(|lost| Refused::Failed(lost.to_string()))?);
    let secret = Zeroizing::new(
        <[u8; 32]>::try_from(&received[..])
            .map_err(|_| Refused::Failed("rank 0 sent no secret".into()))?,
    );
    Ok(Randomness::from_secret(*secret))
}

/// Converts an error of the crate `noise`: none of them depends on records.
pub(crate) fn failed(error: noise::Error) -> Refused {
    Refused::Failed(error.to_string())
}
