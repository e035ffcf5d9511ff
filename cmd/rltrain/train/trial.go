package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// trial is a run of which some steps of each stage are tried.
type trial struct {
	output string // where the run would write
	stages []*tried
}

// tried is a stage of it.
type tried struct {
	name, what, model string
	total, trainable  int64
	splits            []report.Split
	policy            counted
	seen              shared.Sheet // what there is to tell of its step
	err               error
}

// trialAnswers is how many held-out exercises a trial answers at most: as many as are answered at the same time, so that
// they take what they will take.
const trialAnswers = samplerSlots

// A stage is tried for some updates, and for more while they take little time: what it holds grows over them, as tensors of
// many sizes leave memory in pieces. A step is not left half done. The time is that of the processor, so that a busy machine
// says the same.
const (
	trialUpdates = 3
	trialMost    = 40
	trialTime    = 20 * time.Second // of each thread
)

// try tries some steps of each stage in a folder that is removed again, and tells what the run would be.
func (t *trainer) try(ctx context.Context) error {
	c, told := t.config, t.console
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
	if c.Rounds != nil {
		c.Rounds.FreshSamples = 0
	}
	if c.Replay != nil {
		c.Replay.CacheBuffer = false
	}
	t.trial, t.console = &trial{output: output}, report.NewConsole(io.Discard, io.Discard, time.Now)
	runErr := t.run(ctx)
	var s shared.Sheet
	for _, one := range t.trial.stages {
		if one.err != nil {
			return one.err
		}
		t.describe(&s, one)
	}
	if peak := run.PeakMemory(); peak > 0 {
		s.Head("Memory")
		s.Row("at most", "%.0f MiB, measured in this trial", float64(peak)/(1<<20))
	}
	switch {
	case errors.Is(runErr, run.ErrStopped):
		runErr = context.Canceled // there is no run to go on with
	case runErr != nil:
		runErr = fmt.Errorf("the trial ended early: %w", runErr)
	}
	return errors.Join(told.Print(s.String()), runErr)
}

// tries is how a stage is to be tried: not at all where it is run.
func (t *trainer) tries(stage string) (enough func() bool, seen func(step *rl.Step, total int)) {
	if t.trial == nil {
		return nil, nil
	}
	one := &tried{name: stage}
	t.trial.stages = append(t.trial.stages, one)
	updates, began := 0, processorTime()
	enough = func() bool {
		return updates >= trialMost || updates >= trialUpdates && processorTime()-began > trialTime*time.Duration(torch.Threads())
	}
	return enough, func(step *rl.Step, total int) {
		updates += max(1, int(step.Figures.Get("updates")))
		if one.err != nil {
			return
		}
		one.seen.Reset()
		t.describeStep(&one.seen, one, step, total)
		one.err = t.describeSamples(&one.seen, one, step)
	}
}

// processorTime is what all threads of this process have computed for.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// starts has a trial begin with the rows that take most memory.
func (t *trial) starts(source *epochs.Source) {
	if t != nil {
		source.HeaviestFirst()
	}
}

// begins notes what a stage trains.
func (t *trial) begins(what, model string, total, trainable int64, splits []report.Split, p counted) {
	if t != nil {
		one := t.stages[len(t.stages)-1]
		one.what, one.model, one.total, one.trainable, one.splits, one.policy = what, model, total, trainable, splits, p
	}
}

// describe tells of a stage.
func (t *trainer) describe(s *shared.Sheet, one *tried) {
	c := t.config
	s.Head("%s: %s", c.Task.Name, one.what)
	if !strings.HasPrefix(one.model, c.General.OutputDir) {
		s.Row("model", "%s", one.model)
	}
	if one != t.trial.stages[0] {
		s.Row("begins with", "what the trial of the stage before has learnt, which is little: the run's answers will be others")
	}
	s.Row("trainable", "%s of %s parameters", report.Count(one.trainable), report.Count(one.total))
	data := t.dataName()
	for _, split := range one.splits {
		if split.Rows == 0 { // those held out of exercises that are made up come as they are needed
			continue
		}
		data += fmt.Sprintf(", %s %s", split.Name, report.Count(int64(split.Rows)))
	}
	s.Row("data", "%s", data)
	s.Row("output", "%s", strings.Replace(t.stageDir(one.name), c.General.OutputDir, t.trial.output, 1))
	if one.seen.Len() == 0 {
		s.Row("steps", "none: the policy is good enough as it is")
	}
	s.WriteString(one.seen.String())
}

// describeSamples shows what is learnt from: the first sample that is imitated, with its mask, or the first prompt and
// what answers earned.
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
		s.Row(fmt.Sprintf("reward %.4g", float64(r.Reward)), "%q%s", shortened(r.Written, 60), each)
	}
	return nil
}

// describeStep tells what a step is, and how long it takes.
func (t *trainer) describeStep(s *shared.Sheet, one *tried, step *rl.Step, total int) {
	c, m := t.config, step.Figures
	samples, longest, tokens := len(step.Samples), 0, 0
	for _, x := range step.Samples {
		longest, tokens = max(longest, len(x.Tokens)), tokens+len(x.Tokens)
	}
	s.Row("steps", "%s", report.Count(int64(total)))
	updates := int(m.Get("updates"))
	s.Row("a step", "%s to learn from, of %s tokens, the longest of %s; %s", report.Plural(samples, "sample"), report.Count(int64(tokens)), report.Count(int64(longest)), report.Plural(updates, "update"))
	if one.name == supervisedStage && len(one.splits) > 0 && c.Imitation != nil {
		if rest := one.splits[0].Rows % c.Imitation.BatchSize; rest > 0 && c.Imitation.MaxSteps == 0 {
			s.Row("", "batches of %d do not divide %s: the last of an epoch has %d", c.Imitation.BatchSize, report.Plural(one.splits[0].Rows, "row"), rest)
		}
	}
	if c.Minibatches != nil && one.name == rlStage && samples%c.Minibatches.Minibatches != 0 {
		s.Row("", "%d minibatches do not divide %s: their sizes differ by one", c.Minibatches.Minibatches, report.Plural(samples, "sample"))
	}
	if limit := c.General.MicroTokens; limit > 0 && tokens > limit {
		s.Row("", "forward passes hold at most %s tokens", report.Count(int64(limit)))
	}
	if seconds := m.Get("time/step"); seconds > 0 {
		whole := time.Duration(seconds * float64(total) * float64(time.Second))
		s.Row("time", "%s for a step, so about %s for all, evaluations aside", report.Duration(time.Duration(seconds*float64(time.Second))), report.Duration(whole))
	}
}

// shortened is the beginning of a text.
func shortened(text string, runes int) string {
	if r := []rune(text); len(r) > runes {
		return string(r[:runes]) + "..."
	}
	return text
}

// maskRows show the first sample that is imitated, and which of its tokens are trained.
func maskRows(s *shared.Sheet, p *policy.CausalLM, x *rl.Sample) error {
	trained := map[int]bool{}
	first := len(x.Tokens)
	for _, row := range x.Rows {
		trained[row+1] = true
		first = min(first, row+1)
	}
	s.Head("First sample")
	s.Row("tokens", "%d, of which %d are trained", len(x.Tokens), len(x.Rows))
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
