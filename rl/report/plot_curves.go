package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Supervised and Reinforced are the stages of training, as run.json names them.
const (
	Supervised = "supervised"
	Reinforced = "rl"
)

// Panels are the curves of a stage of training, from the rows of its metrics.jsonl: what is measured on held-out rows or
// exercises first, then what the policy earned, then losses and what else was measured. A panel without values is left
// out. Rows of figures are means over logging_steps steps.
func Panels(stage string, rows []Row) []Panel {
	panels := heldOut(rows)
	if stage == Supervised {
		panels = append(panels, of("Training loss", "cross-entropy [nats]", curve(rows, "loss", "loss")))
	} else {
		panels = append(panels, rewards(rows)...)
		panels = append(panels, losses(rows)...)
	}
	return drop(append(panels, of("Learning rate", "learning rate", plain(rows, "learning rate", "learning_rate"))))
}

// ClassificationPanels are the three curves of a policy that gives labels: rewards of its choices, the loss of its updates,
// and its accuracy on held-out rows, beside that of the most frequent label there.
func ClassificationPanels(rows []Row, majority float64) []Panel {
	return drop([]Panel{
		of("Reward per episode", "mean reward", curve(rows, "reward", "reward")),
		of("Loss", "loss", curve(rows, "loss", "loss")),
		of("Validation accuracy", "share", dots(rows, "accuracy", "eval_accuracy"), Series{Label: "majority class", Y: []float64{majority}, Style: Level}),
	})
}

// heldOut are the panels of evaluations.
func heldOut(rows []Row) []Panel {
	scores := []Series{
		within(rows, "accuracy", "eval_accuracy"), dots(rows, "macro F1", "eval_f1_macro"),
		dots(rows, "accuracy of tokens", "eval_mean_token_accuracy"), dots(rows, "in the form asked for", "eval_format_rate"),
	}
	if x := scores[0].X; len(x) > 1 && x[0] == 0 {
		scores = append(scores, Series{Label: "accuracy before", Y: scores[0].Y[:1], Style: Level})
	}
	var kinds []Series
	for _, name := range names(rows, "eval_accuracy/") {
		if s := dots(rows, strings.TrimPrefix(name, "eval_accuracy/"), name); len(s.Y) > 0 {
			kinds = append(kinds, s)
		}
	}
	byKind := "Held out, by kind"
	if most := len(palette); len(kinds) > most { // each has a colour of its own
		last := func(s Series) float64 { return s.Y[len(s.Y)-1] }
		slices.SortStableFunc(kinds, func(a, b Series) int { return cmp.Compare(last(a), last(b)) })
		byKind, kinds = fmt.Sprintf("Held out, the %d weakest kinds", most), kinds[:most]
	}
	return []Panel{
		of("Held out", "share", scores...),
		of(byKind, "accuracy", kinds...),
		of("Held-out reward", "expected reward", dots(rows, "reward", "eval_reward")),
		of("Held-out loss", "cross-entropy [nats]", dots(rows, "loss", "eval_loss")),
		of("Held-out calibration", "error", dots(rows, "ECE", "eval_ece"), dots(rows, "Brier", "eval_brier")),
	}
}

// rewards are the panels of what was sampled.
func rewards(rows []Row) []Panel {
	sampled := []Series{curve(rows, "right", "accuracy"), curve(rows, "in the form asked for", "format_rate")}
	var each []Series
	for _, name := range names(rows, "rewards/") {
		if short, ok := strings.CutSuffix(strings.TrimPrefix(name, "rewards/"), "/mean"); ok {
			each = append(each, curve(rows, short, name))
		}
	}
	if len(each) < 2 {
		each = nil // the reward itself
	}
	return []Panel{
		of("Reward", "mean ± spread in a prompt", spread(rows, "reward", "reward", "reward_std")),
		of("Rewards of the list", "mean reward", each...),
		of("Sampled answers", "share", sampled...),
		of("Margin of the chosen", "reward of the chosen less that of the rejected", curve(rows, "learnt from", "rewards/margins"), dots(rows, "held out", "eval_rewards/margins")),
		of("Chosen above rejected", "share", curve(rows, "learnt from", "rewards/accuracies"), dots(rows, "held out", "eval_rewards/accuracies")),
		of("How answers were found", "share", tiers(rows)...),
		of("Length of answers", "tokens", curve(rows, "mean", "completions/mean_length")),
		of("Answers cut off", "share", curve(rows, "cut off", "completions/clipped_ratio")),
		of("Turns in the buffer", "turns", plain(rows, "turns", "buffer/size")),
		of("Age of what was drawn", "versions of the policy", curve(rows, "mean age", "buffer/staleness")),
	}
}

// losses are the panels of updates, each term of a loss by its name.
func losses(rows []Row) []Panel {
	loss, policy := curve(rows, "loss", "loss"), curve(rows, "policy_loss", "policy_loss")
	if slices.Equal(loss.Y, policy.Y) {
		loss.Y = nil // nothing was added to it
	}
	return []Panel{
		of("Policy loss", "loss", policy),
		of("Loss, with all its terms", "loss", loss),
		of("Value loss", "loss", curve(rows, "value_loss", "value_loss")),
		of("Explained variance", "1 − Var(R − V)/Var(R)", curve(rows, "explained variance", "explained_variance")),
		of("Divergence of an update", "nats an action", curve(rows, "approx_kl", "approx_kl")),
		of("Clipped ratios", "share", curve(rows, "clipped", "clip_ratio/region_mean")),
		of("Divergence from the reference", "nats an action", curve(rows, "k1", "kl/k1"), curve(rows, "k3", "kl/k3")),
		of("Entropy", "entropy [nats]", curve(rows, "entropy", "entropy")),
		of("Gradient norm", "norm before clipping", curve(rows, "norm", "grad_norm")),
	}
}

// tiers are the shares of answers found in each way.
func tiers(rows []Row) []Series {
	var all []Series
	for _, name := range names(rows, "tiers/") {
		all = append(all, curve(rows, strings.TrimPrefix(name, "tiers/"), name))
	}
	return all
}

// spread is a curve with a band of one standard deviation.
func spread(rows []Row, label, name, deviation string) Series {
	s := curve(rows, label, name)
	if _, std := Numbers(rows, name, deviation); len(std) == len(s.Y) {
		for i, y := range s.Y {
			s.Low, s.High = append(s.Low, y-std[i]), append(s.High, y+std[i])
		}
	}
	return s
}

// within is a figure of evaluations with its intervals.
func within(rows []Row, label, name string) Series {
	s := dots(rows, label, name)
	_, low := Numbers(rows, name, name+"_low")
	_, high := Numbers(rows, name, name+"_high")
	if len(low) == len(s.Y) && len(high) == len(s.Y) {
		s.Low, s.High = low, high
	}
	return s
}

// names are the metrics that begin with prefix, sorted.
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
