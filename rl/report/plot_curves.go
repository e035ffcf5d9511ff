package report

// SupervisedPanels are the curves of supervised training, from rows that hold
// "step" with "loss", "learning_rate" and "grad_norm", and rows that hold
// "epoch" with "eval_accuracy", "eval_f1_macro" and "eval_loss". Panels without
// values are left out.
func SupervisedPanels(rows []Row) []Panel {
	return drop([]Panel{
		{"Training loss", "step", "cross-entropy [nats]", []Series{series(rows, "loss", "step", "loss", Smooth)}},
		{"Validation", "epoch", "score", []Series{
			series(rows, "accuracy", "epoch", "eval_accuracy", Points),
			series(rows, "macro F1", "epoch", "eval_f1_macro", Points),
		}},
		{"Validation loss", "epoch", "cross-entropy [nats]", []Series{series(rows, "loss", "epoch", "eval_loss", Points)}},
		{"Learning rate", "step", "learning rate", []Series{series(rows, "learning rate", "step", "learning_rate", Line)}},
	})
}

// PPOPanels are the curves of PPO, from rows that hold "step" with "reward",
// "policy_loss", "value_loss", "approx_kl", "clip_fraction", "entropy" and
// "explained_variance", and rows that hold "episode" with "eval_accuracy" and
// "eval_f1_macro", episode 0 being the policy as it was given. Panels without
// values are left out.
func PPOPanels(rows []Row) []Panel {
	validation := []Series{
		series(rows, "accuracy", "episode", "eval_accuracy", Points),
		series(rows, "macro F1", "episode", "eval_f1_macro", Points),
	}
	if x := validation[0].X; len(x) > 1 && x[0] == 0 {
		validation = append(validation, Series{Label: "accuracy before", Y: validation[0].Y[:1], Style: Level})
	}
	step := func(title, unit, key string, style Style) Panel {
		return Panel{title, "update", unit, []Series{series(rows, title, "step", key, style)}}
	}
	return drop([]Panel{
		step("Reward", "mean reward", "reward", Smooth),
		{"Validation", "episode", "score", validation},
		step("Policy loss", "clipped surrogate", "policy_loss", Smooth),
		step("Value loss", "squared error", "value_loss", Smooth),
		step("Approximate KL", "KL(old, new) [nats]", "approx_kl", Smooth),
		step("Clip fraction", "share of samples", "clip_fraction", Smooth),
		step("Entropy", "entropy [nats]", "entropy", Smooth),
		step("Explained variance", "1 − Var(R − V)/Var(R)", "explained_variance", Smooth),
	})
}

// PanelsOf chooses by what the rows hold. A short run of PPO may have rows of
// episodes alone.
func PanelsOf(rows []Row) []Panel {
	for _, row := range rows {
		for _, key := range []string{"policy_loss", "episode"} {
			if _, ok := row[key]; ok {
				return PPOPanels(rows)
			}
		}
	}
	return SupervisedPanels(rows)
}

func series(rows []Row, label, x, y string, style Style) Series {
	xs, ys := Numbers(rows, x, y)
	return Series{Label: label, X: xs, Y: ys, Style: style}
}

// drop removes series without values, then panels without series.
func drop(panels []Panel) []Panel {
	var out []Panel
	for _, p := range panels {
		var kept []Series
		for _, s := range p.Series {
			if len(s.Y) > 0 {
				kept = append(kept, s)
			}
		}
		if p.Series = kept; len(kept) > 0 {
			out = append(out, p)
		}
	}
	return out
}
