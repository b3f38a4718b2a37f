//! Names that other libraries use for our keys and sections, for suggestions.

/// A name, and the key that is meant. A name may stand for keys of several sections.
pub(super) const ALIASES: &[(&str, &str)] = &[
    ("lr", "optimizer.learning_rate"),
    ("rate", "optimizer.learning_rate"),
    ("lr_schedule", "optimizer.schedule"),
    ("lr_scheduler", "optimizer.schedule"),
    ("lr_scheduler_type", "optimizer.schedule"),
    ("scheduler", "optimizer.schedule"),
    ("warmup", "optimizer.warm_up"),
    ("warmup_ratio", "optimizer.warm_up"),
    ("warmup_steps", "optimizer.warm_up"),
    ("warm_up_steps", "optimizer.warm_up"),
    ("max_grad_norm", "optimizer.clip"),
    ("clip_norm", "optimizer.clip"),
    ("clipping_norm", "optimizer.clip"),
    ("clipping_threshold", "optimizer.clip"),
    ("l2_norm_clip", "optimizer.clip"),
    ("beta1", "optimizer.betas"),
    ("beta2", "optimizer.betas"),
    ("adam_beta1", "optimizer.betas"),
    ("adam_beta2", "optimizer.betas"),
    ("adam_epsilon", "optimizer.epsilon"),
    ("eps", "privacy.epsilon"),
    ("eps", "optimizer.epsilon"),
    ("ema", "optimizer.ema_decay"),
    ("type", "optimizer.name"),
    ("optimizer", "optimizer.name"),
    ("optimiser", "optimizer.name"),
    ("target_epsilon", "privacy.epsilon"),
    ("target_delta", "privacy.delta"),
    ("noise_multiplier", "privacy.sigma"),
    ("noise_scale", "privacy.sigma"),
    ("noise_seed", "privacy.seed"),
    ("batch", "training.lot_size"),
    ("batch_size", "training.lot_size"),
    ("lot", "training.lot_size"),
    ("train_batch_size", "training.lot_size"),
    ("per_device_train_batch_size", "training.lot_size"),
    ("micro_batch_size", "training.micro_batch"),
    ("microbatch_size", "training.micro_batch"),
    ("physical_batch_size", "training.micro_batch"),
    ("max_physical_batch_size", "training.micro_batch"),
    ("epoch", "training.epochs"),
    ("num_epochs", "training.epochs"),
    ("num_train_epochs", "training.epochs"),
    ("n_epochs", "training.epochs"),
    ("max_steps", "training.steps"),
    ("num_steps", "training.steps"),
    ("iterations", "training.steps"),
    ("num_threads", "training.threads"),
    ("num_workers", "training.threads"),
    ("save_steps", "training.checkpoint_every"),
    ("save_every", "training.checkpoint_every"),
    ("random_seed", "model.seed"),
    ("model_name", "model.source"),
    ("model_name_or_path", "model.source"),
    ("name", "model.source"),
    ("path", "model.source"),
    ("path", "data.train"),
    ("lora_r", "model.lora_rank"),
    ("rank", "model.lora_rank"),
    ("r", "model.lora_rank"),
    ("target_modules", "model.lora_on"),
    ("gradient_checkpointing", "model.recompute"),
    ("dataset", "data.train"),
    ("file", "data.train"),
    ("train_file", "data.train"),
    ("training", "data.train"),
    ("dev", "data.validation"),
    ("val", "data.validation"),
    ("valid", "data.validation"),
    ("eval_file", "data.validation"),
    ("validation_file", "data.validation"),
    ("test_file", "data.test"),
    ("user", "data.group"),
    ("user_id", "data.group"),
    ("user_column", "data.group"),
    ("person", "data.group"),
    ("group_by", "data.group"),
    ("text", "data.text_column"),
    ("label", "data.label_column"),
    ("classes", "data.labels"),
    ("num_classes", "data.labels"),
    ("max_len", "data.max_length"),
    ("max_seq_len", "data.max_length"),
    ("max_seq_length", "data.max_length"),
    ("max_tokens", "data.max_length"),
    ("model_max_length", "data.max_length"),
    ("seq_len", "data.max_length"),
    ("sequence_length", "data.max_length"),
    ("eval_every", "evaluation.every"),
    ("eval_steps", "evaluation.every"),
    ("num_beams", "evaluation.beams"),
];

/// A name, and the section that is meant.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("train", "training"),
    ("trainer", "training"),
    ("run", "training"),
    ("eval", "evaluation"),
    ("validation", "evaluation"),
    ("test", "evaluation"),
    ("optim", "optimizer"),
    ("optimiser", "optimizer"),
    ("lora", "model"),
    ("network", "model"),
    ("dataset", "data"),
    ("dp", "privacy"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn aliases_stand_for_keys_that_exist() {
        let config = Config::default().with_optimizer("dp-adam").unwrap();
        let sections = config.sections();
        for (alias, target) in ALIASES {
            let (section, key) = target.split_once('.').unwrap();
            let section = sections.iter().find(|other| other.name == section).unwrap();
            assert!(section.keys.iter().any(|other| other.name == key), "{alias}: {target}");
            assert!(!section.keys.iter().any(|other| other.name == *alias), "{alias} is a key");
        }
        for (alias, target) in SECTIONS {
            assert!(sections.iter().any(|section| section.name == *target), "{alias}");
        }
    }
}
