package train

import (
	"fmt"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// longRun is how long a run may take without a word about what shortens it.
const longRun = 30 * time.Minute

// lengths are the options that decide how long a run takes, those of the supervised stage first.
var lengths = []string{
	"max_steps", "epochs", "batch_size", "num_steps", "rl_episodes", "buffer_size", "prompts_per_step", "samples_per_prompt", "max_new_tokens",
	"eval_samples", "eval_every", "warmup_check_every",
}

// sizes are the samples of a step, and the most tokens that the policy generates for one; 0 for samples of a data set.
func (t *trainer) sizes(stage string) (samples, tokens int) {
	c := t.config
	switch {
	case c.Rewarding != nil:
		return c.Rewarding.BatchSize, 0
	case stage == supervisedStage:
		return c.Supervised.BatchSize, 0
	case c.Pairs != nil:
		return c.Pairs.BatchSize, 0
	case c.LabelRollouts != nil:
		return c.LabelRollouts.BufferSize, 1
	case c.Replay != nil:
		return c.Replay.PromptsPerStep, c.LongestAnswer()
	}
	return c.Fresh.PromptsPerStep * c.Fresh.SamplesPerPrompt, c.LongestAnswer()
}

// amount is a number of steps in words.
func (t *trainer) amount(stage, unit string, steps int) string {
	samples, tokens := t.sizes(stage)
	text := fmt.Sprintf("%s of %s", report.Plural(steps, unit), report.Plural(samples, "sample"))
	if tokens > 1 {
		text += fmt.Sprintf(" of up to %s", report.Plural(tokens, "new token"))
	}
	return text
}

// rlSteps is the number of steps of the RL stage.
func (t *trainer) rlSteps() int {
	switch c := t.config; {
	case c.LabelRollouts != nil:
		return c.LabelRollouts.Episodes
	case c.Fresh != nil && c.Fresh.Epochs > 0 && t.prompts > 0:
		return c.Fresh.Epochs * max(1, t.prompts/c.Fresh.PromptsPerStep)
	}
	return t.config.Rounds.Steps
}

// plan says what a stage is going to do, and what follows.
func (t *trainer) plan(w *work) (string, error) {
	c := t.config
	// What is in memory now, gradients and moments, copies of weights, and the activations of a micro-batch.
	memory, err := w.settings.Bytes(w.policy)
	if err != nil {
		return "", err
	}
	copies, err := copiedBytes(w)
	if err != nil {
		return "", err
	}
	memory += run.PeakMemory() + copies
	text := "Plan: " + t.amount(w.stage, w.unit, w.settings.Steps)
	if w.stage == supervisedStage && c.RL != nil {
		text += "; then RL, " + t.amount(rlStage, "step", t.rlSteps())
	}
	if n := w.settings.Evaluate; n != nil && n.Rows > 0 {
		text += fmt.Sprintf("; %s per evaluation", report.Plural(n.Rows, "held-out row"))
	}
	samples, _ := t.sizes(w.stage)
	memory += w.policy.ActivationBytes(w.settings.Checkpoint) * int64(passTokens(w.settings.MicroTokens, samples, w.longest))
	if w.stage == rlStage && w.longest > 0 && c.Answers != nil {
		memory += w.policy.CacheBytes() * int64(t.slots()*w.longest)
	}
	return text + fmt.Sprintf("; at most about %.1f GiB of memory", float64(memory)/(1<<30)), nil
}

// savedCopies of the largest weight are in memory while a checkpoint is written: as it was read, as it is stored, as bytes, and two of
// earlier weights, which are freed late.
const savedCopies = 5

// copiedBytes is the memory of the best weights, of the reference, of the policy as its own teacher, and of writing a checkpoint.
func copiedBytes(w *work) (bytes int64, err error) {
	copies, err := w.settings.Copies(w.policy, w.algorithm)
	if err != nil {
		return 0, err
	}
	_, trainable := w.policy.Parameters()
	bytes = 4 * trainable * copies
	largest := int64(0)
	for _, v := range w.policy.Params() {
		n, err := v.Elements()
		if err != nil {
			return 0, err
		}
		largest = max(largest, n)
	}
	return bytes + 4*savedCopies*largest, nil
}

// passTokens is how many tokens a pass has at most: those of a micro-batch, or of all samples of a step if they are fewer,
// and at least those of the longest sample. longest 0 is unknown.
func passTokens(micro, samples, longest int) int {
	if longest > 0 {
		micro = min(micro, samples*longest)
	}
	return max(micro, longest)
}

// estimated returns a stage's hooks, which say after the first step how long the run will take.
func (t *trainer) estimated(stage *run.Stage, w *work) run.Hooks {
	h := stage.Hooks(w.label, w.unit)
	progress, told := h.Progress, t.trial != nil
	h.Progress = func(done, total int, note string) {
		progress(done, total, note)
		if !told {
			told = true
			_ = t.console.Print(t.estimate(h.Phases, w, total-done)) // an error comes again with the next line
		}
	}
	return h
}

// estimate says how long the rest of the run takes, by the phases of its first step.
func (t *trainer) estimate(p *run.Phases, w *work, steps int) string {
	c := t.config
	p.Begin("") // ends the update
	step := p.Spent(run.PhaseRollout) + p.Spent(run.PhaseReward) + p.Spent(run.PhaseUpdate)
	left := time.Duration(steps) * step
	measured := "without evaluations"
	if once, e := p.Spent(run.PhaseEvaluation), w.settings.Evaluate; once > 0 && e != nil {
		times := 1 // after the last step
		if e.Every > 0 {
			times += steps / e.Every
		}
		left += once * time.Duration(times)
		measured = "with evaluations"
	}
	if left == 0 && (w.stage != supervisedStage || c.RL == nil) {
		return fmt.Sprintf("The first %s took %s", w.unit, report.Duration(step))
	}
	text := fmt.Sprintf("The first %s took %s: about %s left for this stage, %s", w.unit, report.Duration(step), report.Duration(left), measured)
	if w.stage == supervisedStage && c.RL != nil && p.Tokens > 0 {
		// A guess: generating a token takes as long as training on it.
		samples, tokens := t.sizes(rlStage)
		perToken := p.Spent(run.PhaseUpdate) / time.Duration(p.Tokens)
		rl := perToken * time.Duration(2*samples*tokens*t.rlSteps())
		if c.LabelRollouts != nil { // which read whole texts
			rl = p.Spent(run.PhaseUpdate) / time.Duration(c.Supervised.BatchSize) * time.Duration(2*samples*t.rlSteps())
		}
		text += fmt.Sprintf("; RL afterwards up to %s (a guess)", report.Duration(rl))
		left += rl
	}
	if left < longRun {
		return text
	}
	var options []string
	for _, key := range lengths {
		if value := c.Text(key); value != "" && (w.stage == supervisedStage || c.StageOf(key) != supervisedStage) {
			options = append(options, "--"+strings.ReplaceAll(key, "_", "-")+" "+value)
		}
	}
	return text + fmt.Sprintf("\nThat is more than %s. To shorten it, lower some of: %s; or stop it with --max-time 30m and --resume it later", report.Duration(longRun), strings.Join(options, ", "))
}
