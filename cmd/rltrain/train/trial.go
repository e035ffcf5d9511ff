package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// trial is a dry run: some steps of each stage are run in a temporary folder.
type trial struct {
	output string // where the run would write
	stages []*tried
}

// tried is a stage of it.
type tried struct {
	*work
	total, trainable int64
	seen             shared.Sheet // what there is to say of a step
}

// trialAnswers is how many held-out problems a dry run answers at most: as many as are answered at the same time.
const trialAnswers = samplerSlots

// A stage is tried for some updates, and for more while they take little time: its memory grows over them, as tensors of
// many sizes fragment it. The time is that of the processor, so that a busy machine gives the same result.
const (
	trialUpdates = 3
	trialMost    = 40
	trialTime    = 20 * time.Second // of each thread
	trialScan    = 10000            // steps of a data set that are searched for the one with most tokens
)

// dryRun runs some steps of each stage in a temporary folder, and prints a summary of the run.
func (t *trainer) dryRun(ctx context.Context) error {
	c, console := t.config, t.console
	output := c.General.OutputDir
	folder, err := os.MkdirTemp("", "rltrain-trial-")
	if err != nil {
		return fmt.Errorf("--dry-run: %w", err)
	}
	defer os.RemoveAll(folder)
	c.General.OutputDir, c.General.Resume, c.General.ResumeFrom = folder, false, ""
	c.Saving.ReportTo, c.Saving.Completions = nil, 0
	if c.Answers != nil {
		c.Answers.EvalSamples = min(c.Answers.EvalSamples, trialAnswers)
	}
	if c.Replay != nil {
		c.Replay.CacheBuffer = false
	}
	t.trial, t.console = &trial{output: output}, report.NewConsole(io.Discard, io.Discard, time.Now)
	runErr := t.run(ctx)
	var s shared.Sheet
	for _, one := range t.trial.stages {
		t.describe(&s, one)
	}
	if peak := run.PeakMemory(); peak > 0 {
		s.Head("Memory")
		s.Row("peak", "%.0f MiB, measured in this dry run", float64(peak)/(1<<20))
	}
	switch {
	case errors.Is(runErr, run.ErrStopped):
		runErr = context.Canceled // there is no run to resume
	case runErr != nil:
		runErr = fmt.Errorf("the dry run ended early: %w", runErr)
	}
	return errors.Join(console.Print(s.String()), runErr)
}

// try runs some steps of a stage, with an evaluation before and after.
func (t *trainer) try(ctx context.Context, w *work, hooks run.Hooks) error {
	one := &tried{work: w}
	one.total, one.trainable = w.policy.Parameters()
	t.trial.stages = append(t.trial.stages, one)
	source := &watched{Source: w.source, steps: w.settings.Steps}
	trainer, err := train.New(w.policy, source, &busy{w.algorithm}, w.settings, hooks)
	if err != nil {
		return err
	}
	defer trainer.Close()
	evaluate := func() (done bool, err error) {
		if w.settings.Evaluate == nil {
			return false, nil
		}
		torch.ReleaseMemory()
		defer torch.ReleaseMemory()
		scores, err := w.settings.Evaluate.Run(ctx, 0)
		return scores.Done, err
	}
	if w.settings.Evaluate != nil && w.settings.Evaluate.First {
		if done, err := evaluate(); err != nil || done {
			return err
		}
	}
	began := processorTime()
	for steps, updates := 0, 0; steps < w.settings.Steps; steps++ {
		if updates >= trialMost || updates >= trialUpdates && processorTime()-began > trialTime*time.Duration(torch.Threads()) {
			break
		}
		figures, err := trainer.Step(ctx)
		if err != nil {
			return err
		}
		updates += max(1, int(figures.Get("updates")))
	}
	t.describeStep(&one.seen, one, source.last)
	if err := t.describeSamples(&one.seen, one, source.last); err != nil {
		return err
	}
	_, err = evaluate()
	return err
}

// watched is a source that keeps the step it gave last. Of a data set it gives the step with most tokens first, so that few
// steps show how much memory a run takes.
type watched struct {
	train.Source
	steps int
	last  *rl.Step
}

// Next implements train.Source.
func (s *watched) Next(ctx context.Context, at rl.At) (step *rl.Step, err error) {
	if _, ok := s.Source.(interface{ PerEpoch() int }); ok && s.last == nil {
		if at.Step, err = s.heaviest(ctx, at); err != nil {
			return nil, err
		}
	}
	s.last, err = s.Source.Next(ctx, at)
	return s.last, err
}

// heaviest is the step of a data set that has most tokens.
func (s *watched) heaviest(ctx context.Context, at rl.At) (heaviest int, err error) {
	most := 0
	for i := range min(s.steps, trialScan) {
		step, err := s.Source.Next(ctx, rl.At{Step: i, Version: at.Version})
		if err != nil {
			return 0, err
		}
		if n := tokensOf(step); n > most {
			most, heaviest = n, i
		}
	}
	return heaviest, nil
}

func tokensOf(step *rl.Step) (n int) {
	for _, x := range step.Samples {
		n += len(x.Tokens)
	}
	return n
}

// busy is an algorithm that has something to learn even if all rewards are equal: a dry run takes the time and the memory
// of a step.
type busy struct{ algo.Algorithm }

// Prepare implements algo.Algorithm.
func (a *busy) Prepare(step *rl.Step) error {
	if err := a.Algorithm.Prepare(step); err != nil {
		return err
	}
	learns := func(x *rl.Sample) bool {
		return slices.ContainsFunc(x.Advantage, func(a float32) bool { return a != 0 })
	}
	if slices.ContainsFunc(step.Samples, learns) {
		return nil
	}
	for _, x := range step.Samples {
		if x.Advantage != nil {
			x.Fill(1)
		}
	}
	return nil
}

// processorTime is what all threads of this process have computed for.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// describe is what there is to say of a stage.
func (t *trainer) describe(s *shared.Sheet, one *tried) {
	c := t.config
	s.Head("%s: %s", c.Task.Name, one.what)
	if !strings.HasPrefix(one.from, c.General.OutputDir) {
		s.Row("model", "%s", one.from)
	}
	if one != t.trial.stages[0] {
		s.Row("starts from", "the dry run of the stage before, which has learnt little: the run's completions will differ")
	}
	s.Row("trainable", "%s of %s parameters", report.Count(one.trainable), report.Count(one.total))
	data := t.dataName()
	for _, split := range one.splits {
		if split.Rows == 0 { // held-out problems that are made up come as they are needed
			continue
		}
		data += fmt.Sprintf(", %s %s", split.Name, report.Count(int64(split.Rows)))
	}
	s.Row("data", "%s", data)
	s.Row("output", "%s", strings.Replace(t.stageDir(one.stage), c.General.OutputDir, t.trial.output, 1))
	if one.seen.Len() == 0 {
		s.Row("steps", "none: the policy is good enough already")
	}
	s.WriteString(one.seen.String())
}

// describeSamples shows what is learnt from: the first sample of a supervised stage, with its mask, or the first prompt and
// the rewards of some completions.
func (t *trainer) describeSamples(s *shared.Sheet, one *tried, step *rl.Step) error {
	p, language := one.policy.(*policy.CausalLM)
	if step.Records == nil && language && len(step.Samples) > 0 {
		return maskRows(s, p, step.Samples[0])
	}
	if step.Records == nil {
		return nil
	}
	records, err := step.Records(3)
	if err != nil || len(records) == 0 {
		return err
	}
	if language {
		s.Head("First prompt")
		s.Block(records[0].Shown)
	}
	s.Head("Rewards of three samples")
	for i := 0; i < len(records) && i < 3; i++ {
		r := records[i]
		each := ""
		for _, part := range r.Each {
			each += fmt.Sprintf(", %s %.4g", part.Name, float64(part.Value))
		}
		s.Row(fmt.Sprintf("reward %.4g", float64(r.Reward)), "%q%s", report.Shortened(r.Written, 60), each)
	}
	return nil
}

// describeStep says what a step is, and how long it takes.
func (t *trainer) describeStep(s *shared.Sheet, one *tried, step *rl.Step) {
	c, m, total := t.config, step.Figures, one.settings.Steps
	samples, longest, tokens := len(step.Samples), 0, tokensOf(step)
	for _, x := range step.Samples {
		longest = max(longest, len(x.Tokens))
	}
	s.Row("steps", "%s", report.Count(int64(total)))
	updates := int(m.Get("updates"))
	s.Row("a step", "%s with %s tokens, the longest %s; %s", report.Plural(samples, "sample"), report.Count(int64(tokens)), report.Count(int64(longest)), report.Plural(updates, "update"))
	if one.stage == supervisedStage && len(one.splits) > 0 && c.Supervised != nil {
		if rest := one.splits[0].Rows % c.Supervised.BatchSize; rest > 0 && c.Supervised.MaxSteps == 0 {
			s.Row("", "%d does not divide %s: the last batch of an epoch has %d", c.Supervised.BatchSize, report.Plural(one.splits[0].Rows, "row"), rest)
		}
	}
	if c.Minibatches != nil && one.stage == rlStage && samples%c.Minibatches.Minibatches != 0 {
		s.Row("", "%d minibatches of %s: their sizes differ by one", c.Minibatches.Minibatches, report.Plural(samples, "sample"))
	}
	if limit := c.General.MicroTokens; limit > 0 && tokens > limit {
		s.Row("", "forward passes hold at most %s tokens", report.Count(int64(limit)))
	}
	if seconds := m.Get("time/step"); seconds > 0 {
		whole := time.Duration(seconds * float64(total) * float64(time.Second))
		s.Row("time", "%s/step, about %s in all without evaluations", report.Duration(time.Duration(seconds*float64(time.Second))), report.Duration(whole))
	}
}

// maskRows show a sample, and which of its tokens are trained on.
func maskRows(s *shared.Sheet, p *policy.CausalLM, x *rl.Sample) error {
	trained := map[int]bool{}
	first := len(x.Tokens)
	for _, row := range x.Rows {
		trained[row+1] = true
		first = min(first, row+1)
	}
	s.Head("First sample")
	s.Row("tokens", "%d, %d trained on", len(x.Tokens), len(x.Rows))
	const before, most = 4, 14
	var rows [][]string
	for i := max(0, first-before); i < len(x.Tokens); i++ {
		if len(rows) == most && i < len(x.Tokens)-3 {
			rows = append(rows, []string{"", "", "...", ""})
			i = len(x.Tokens) - 3
		}
		text, err := p.Tokenizer.Decode(x.Tokens[i:i+1], false)
		if err != nil {
			return err
		}
		rows = append(rows, []string{strconv.Itoa(i), strconv.Itoa(int(x.Tokens[i])), strconv.Quote(text), map[bool]string{true: "yes", false: "no"}[trained[i]]})
	}
	s.Block(report.RenderTable([]string{"token", "id", "text", "trained"}, rows))
	return nil
}
