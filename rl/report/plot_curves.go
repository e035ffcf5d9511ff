package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Supervised and Reinforced name the stages of training in run.json.
const (
	Supervised = "supervised"
	Reinforced = "rl"
)

// Panels returns the curves of a stage from the rows of its metrics.jsonl: held-out metrics, rewards, losses, learning rate.
// It omits panels without values. Each row averages logging_steps steps.
func Panels(stage string, rows []Row) []Panel {
	panels := heldOut(rows)
	if stage == Supervised {
		panels = append(panels, of("Training loss", "cross-entropy, nats", curve(rows, "loss", "loss")))
	} else {
		panels = append(panels, rewards(rows)...)
		panels = append(panels, losses(rows)...)
	}
	return drop(append(panels, of("Learning rate", "learning rate", plain(rows, "learning rate", "learning_rate"))))
}

// ClassificationPanels returns three panels of a classifier: reward, loss, and held-out accuracy next to that of the
// majority class.
func ClassificationPanels(rows []Row, majority float64) []Panel {
	return drop([]Panel{
		of("Reward per episode", "mean", curve(rows, "reward", "reward")),
		of("Loss", "loss", curve(rows, "loss", "loss")),
		of("Validation accuracy", "fraction", dots(rows, "accuracy", "eval_accuracy"), Series{Label: "majority class", Y: []float64{majority}, Style: Level}),
	})
}

// heldOut returns the panels of evaluations.
func heldOut(rows []Row) []Panel {
	scores := []Series{
		within(rows, "accuracy", "eval_accuracy"), dots(rows, "macro F1", "eval_f1_macro"),
		dots(rows, "token accuracy", "eval_mean_token_accuracy"), dots(rows, "format rate", "eval_format_rate"),
	}
	if x := scores[0].X; len(x) > 1 && x[0] == 0 {
		scores = append(scores, Series{Label: "accuracy before training", Y: scores[0].Y[:1], Style: Level})
	}
	var kinds []Series
	for _, name := range names(rows, "eval_accuracy/") {
		if s := dots(rows, strings.TrimPrefix(name, "eval_accuracy/"), name); len(s.Y) > 0 {
			kinds = append(kinds, s)
		}
	}
	byKind := "Held-out accuracy by kind"
	if most := len(palette); len(kinds) > most { // one colour each
		last := func(s Series) float64 { return s.Y[len(s.Y)-1] }
		slices.SortStableFunc(kinds, func(a, b Series) int { return cmp.Compare(last(a), last(b)) })
		byKind, kinds = fmt.Sprintf("Held-out accuracy, %d weakest kinds", most), kinds[:most]
	}
	return []Panel{
		of("Held-out accuracy", "fraction, evaluation decoding", scores...),
		of(byKind, "fraction", kinds...),
		of("Held-out reward", "expected reward", dots(rows, "reward", "eval_reward")),
		of("Held-out loss", "cross-entropy, nats", dots(rows, "loss", "eval_loss")),
		of("Held-out calibration", "error", dots(rows, "ECE", "eval_ece"), dots(rows, "Brier", "eval_brier")),
	}
}

// rewards returns the panels of sampled completions and of pairs.
func rewards(rows []Row) []Panel {
	sampled := []Series{curve(rows, "sampled accuracy", "accuracy"), curve(rows, "format rate", "format_rate")}
	var each []Series
	for _, name := range names(rows, "rewards/") {
		if short, ok := strings.CutSuffix(strings.TrimPrefix(name, "rewards/"), "/mean"); ok {
			each = append(each, curve(rows, short, name))
		}
	}
	if len(each) < 2 {
		each = nil // equals the reward
	}
	return []Panel{
		of("Reward", "mean ± standard deviation of samples", spread(rows, "reward", "reward", "reward_std")),
		of("Reward components", "mean", each...),
		of("Sampled accuracy", "fraction of training rollouts", sampled...),
		of("Reward margin", "chosen − rejected", curve(rows, "training", "rewards/margins"), dots(rows, "held out", "eval_rewards/margins")),
		of("Preference accuracy", "fraction with chosen > rejected", curve(rows, "training", "rewards/accuracies"), dots(rows, "held out", "eval_rewards/accuracies")),
		of("How answers were found", "fraction", tiers(rows)...),
		of("Completion length", "tokens", curve(rows, "mean", "completions/mean_length")),
		of("Truncated completions", "fraction", curve(rows, "truncated", "completions/clipped_ratio")),
		of("Replay buffer size", "turns", plain(rows, "turns", "buffer/size")),
		of("Age of replayed samples", "policy versions", curve(rows, "mean age", "buffer/staleness")),
	}
}

// losses returns the panels of updates, with each term of the loss.
func losses(rows []Row) []Panel {
	loss, policy := curve(rows, "loss", "loss"), curve(rows, "policy_loss", "policy_loss")
	if slices.Equal(loss.Y, policy.Y) {
		loss.Y = nil // equals the policy loss
	}
	return []Panel{
		of("Policy loss", "loss", policy),
		of("Total loss", "loss", loss),
		of("Value loss", "loss", curve(rows, "value_loss", "value_loss")),
		of("Explained variance", "1 − Var(R − V)/Var(R)", curve(rows, "explained variance", "explained_variance")),
		of("KL per update", "nats per action", curve(rows, "approx_kl", "approx_kl")),
		of("Clipped ratios", "fraction", curve(rows, "clipped", "clip_ratio/region_mean")),
		of("KL to the reference policy", "nats per action", curve(rows, "k1", "kl/k1"), curve(rows, "k3", "kl/k3")),
		of("Entropy", "nats per action", curve(rows, "entropy", "entropy")),
		of("Gradient norm", "before clipping", curve(rows, "norm", "grad_norm")),
	}
}

// tiers returns how answers were found: the fraction for each tier.
func tiers(rows []Row) []Series {
	var all []Series
	for _, name := range names(rows, "tiers/") {
		all = append(all, curve(rows, strings.TrimPrefix(name, "tiers/"), name))
	}
	return all
}

// spread returns a curve with a band of one standard deviation.
func spread(rows []Row, label, name, deviation string) Series {
	s := curve(rows, label, name)
	if _, std := Numbers(rows, name, deviation); len(std) == len(s.Y) {
		for i, y := range s.Y {
			s.Low, s.High = append(s.Low, y-std[i]), append(s.High, y+std[i])
		}
	}
	return s
}

// within returns an evaluation metric with its confidence intervals.
func within(rows []Row, label, name string) Series {
	s := dots(rows, label, name)
	_, low := Numbers(rows, name, name+"_low")
	_, high := Numbers(rows, name, name+"_high")
	if len(low) == len(s.Y) && len(high) == len(s.Y) {
		s.Low, s.High = low, high
	}
	return s
}

// names returns the metrics that start with prefix, sorted.
func names(rows []Row, prefix string) []string {
	var found []string
	for _, row := range rows {
		for name := range row {
			if strings.HasPrefix(name, prefix) && !slices.Contains(found, name) {
				found = append(found, name)
			}
		}
	}
	slices.Sort(found)
	return found
}

func of(title, unit string, series ...Series) Panel { return Panel{title, "step", unit, series} }

func curve(rows []Row, label, name string) Series { return series(rows, label, name, Smooth) }
func dots(rows []Row, label, name string) Series  { return series(rows, label, name, Points) }
func plain(rows []Row, label, name string) Series { return series(rows, label, name, Line) }

func series(rows []Row, label, name string, style Style) Series {
	xs, ys := Numbers(rows, "step", name)
	return Series{Label: label, X: xs, Y: ys, Style: style}
}

// drop removes series without values, then panels without series.
func drop(panels []Panel) []Panel {
	var out []Panel
	for _, p := range panels {
		p.Series = slices.DeleteFunc(slices.Clone(p.Series), func(s Series) bool { return len(s.Y) == 0 })
		if len(p.Series) > 0 {
			out = append(out, p)
		}
	}
	return out
}
