package report

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// figures are the metrics of a step, the most important first.
var figures = []string{
	"loss", "reward", "reward_std", "accuracy", "mean_token_accuracy", "rewards/margins", "rewards/accuracies", "format_rate",
	"kl/k3", "approx_kl", "entropy", "completions/mean_length", "completions/clipped_ratio", "value_loss", "explained_variance",
	"clip_ratio/region_mean", "epsilon", "grad_norm", "learning_rate",
}

// RowLine is the row of a step as name=value pairs, for the training log.
func RowLine(row Row) string {
	var parts []string
	for _, name := range figures {
		if v, ok := number(row[name]); ok {
			parts = append(parts, fmt.Sprintf("%s=%.4g", name, v))
		}
	}
	return strings.Join(parts, " ")
}

// Progress is where a stage of training stands.
type Progress struct {
	Stage       string        // the algorithm, or the stage
	Done, Total int           // steps
	Left        time.Duration // estimate; 0 = by the time of this step
}

// StepLine is the line of a step on the console, such as
// "grpo 4/60  reward 0.48 ±0.03  sampled acc 36 %  kl 0.02  len 12  12.1 s/step  ETA 11:20". It drops the least important figures
// if it is wider than width columns; 0 = no limit. It is empty if the row has no figure of a step.
func StepLine(p Progress, row Row, width int) string {
	var parts []string
	add := func(format, name string, scale float64) bool {
		v, ok := number(row[name])
		if ok {
			parts = append(parts, fmt.Sprintf(format, scale*v))
		}
		return ok
	}
	if !add("reward %.2f", "reward", 1) {
		add("loss %.3f", "loss", 1)
	} else if v, ok := number(row["reward_stderr"]); ok {
		parts[0] += fmt.Sprintf(" ±%.2f", v)
	}
	for _, accuracy := range []string{"rewards/accuracies", "accuracy", "mean_token_accuracy"} {
		format := "acc %.0f %%"
		if _, rollouts := number(row["reward"]); rollouts {
			format = "sampled " + format // evaluations are greedy
		}
		if add(format, accuracy, 100) {
			break
		}
	}
	add("format %.0f %%", "format_rate", 100)
	add("margin %.2f", "rewards/margins", 1)
	if !add("kl %.2g", "kl/k3", 1) {
		add("approx_kl %.2g", "approx_kl", 1)
	}
	add("len %.0f", "completions/mean_length", 1)
	if v, ok := number(row["completions/clipped_ratio"]); ok && v > 0 {
		add("truncated %.0f %%", "completions/clipped_ratio", 100)
	}
	if len(parts) == 0 {
		return ""
	}
	total := fmt.Sprint(p.Total)
	head := fmt.Sprintf("%s %*d/%s", p.Stage, len(total), p.Done, total)
	var tail []string
	if v, ok := number(row["time/step"]); ok {
		tail = append(tail, pace(v))
		if p.Left == 0 { // the first step
			p.Left = time.Duration(v * float64(p.Total-p.Done) * float64(time.Second))
		}
	}
	if p.Left >= time.Second {
		tail = append(tail, "ETA "+Clock(p.Left))
	}
	for {
		line := strings.Join(append(append([]string{head}, parts...), tail...), "  ")
		if width == 0 || len(parts) < 2 || utf8.RuneCountInString(line) < width {
			return line
		}
		parts = parts[:len(parts)-1]
	}
}

// pace is the time of a step, to about three digits.
func pace(seconds float64) string {
	decimals := 1
	if seconds > 0 && seconds < 1 {
		decimals = min(3, 1-int(math.Floor(math.Log10(seconds))))
	}
	return fmt.Sprintf("%.*f s/step", decimals, seconds)
}
