package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/scratch"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// trial is a dry run: small steps of each stage in a temporary folder.
type trial struct {
	output string // where the run would write
	sheet  shared.Sheet
	stages int
	memory int64 // most that a stage is expected to take
}

// What a dry run computes at most in each stage, whatever the model and the options: trialSteps steps of one update. The
// first one also pays for what is done once, so the last one is measured.
const (
	trialSteps   = 2
	trialSamples = 2     // of one prompt
	trialNew     = 16    // tokens generated for an action
	trialTokens  = 512   // of all samples that a step trains on
	trialScan    = 10000 // steps of a data set that are searched for the one with most tokens
	// trialRest is what evaluations, pictures and the allocators of a longer run take.
	trialRest = 160 << 20
)

// dryRun runs small steps of each stage in a temporary folder, and prints a summary of the run.
func (t *trainer) dryRun(ctx context.Context) error {
	c, console := t.config, t.console
	t.trial = &trial{output: c.General.OutputDir}
	folder, done, err := scratch.New("", "rltrain-trial-")
	if err != nil {
		return fmt.Errorf("--dry-run: %w", err)
	}
	defer done()
	c.General.OutputDir, c.General.Resume, c.General.ResumeFrom = folder, false, ""
	c.Saving.ReportTo, c.Saving.Completions = nil, 0
	t.console = report.NewConsole(io.Discard, io.Discard, time.Now)
	runErr := t.run(ctx)
	s := &t.trial.sheet
	if peak := run.PeakMemory(); peak > 0 && t.trial.memory > 0 {
		s.Head("Memory")
		s.Row("measured", "%.0f MiB in this dry run", float64(peak)/(1<<20))
		s.Row("extrapolated", "at most %.0f MiB", float64(t.trial.memory)/(1<<20))
	}
	switch {
	case errors.Is(runErr, run.ErrStopped):
		runErr = context.Canceled // there is no run to resume
	case runErr != nil:
		runErr = fmt.Errorf("the dry run ended early: %w", runErr)
	}
	return errors.Join(console.Print(s.String()), runErr)
}

// limit bounds what a source of rollouts plays in a dry run. A run itself has no trial.
func (r *trial) limit(s *rollout.Setup) {
	if r == nil {
		return
	}
	c := &s.Rollout
	c.PromptsPerStep, c.SamplesPerPrompt = 1, min(trialSamples, c.SamplesPerPrompt)
	c.MaxNew, c.MaxTotal = min(trialNew, c.MaxNew), min(trialNew, c.MaxTotal)
	c.DynamicSampling, c.Async, c.OverlongBuffer = false, false, 0
	if buffer, ok := s.Options.(*rollout.ReplayOptions); ok {
		small := *buffer
		small.PromptsPerStep, small.NumUpdateSteps, small.CacheBuffer = 1, trialSamples, false
		s.Options = &small
	}
}

// limitLabels bounds the rollouts of a classifier in a dry run.
func (r *trial) limitLabels(o rollout.LabelOptions) rollout.LabelOptions {
	if r != nil {
		o.Samples, o.BufferSize = min(trialSamples, o.Samples), trialSamples
	}
	return o
}

// phases are the time that a step took.
type phases struct{ rollout, reward, update time.Duration }

func phasesOf(p *run.Phases) phases {
	p.Begin("") // ends the current one
	return phases{p.Spent(run.PhaseRollout), p.Spent(run.PhaseReward), p.Spent(run.PhaseUpdate)}
}

// try runs small steps of a stage, and adds what they show to the summary.
func (t *trainer) try(ctx context.Context, w *work, hooks run.Hooks) error {
	s := w.settings
	s.Evaluate, s.Precompute, s.Patience = nil, nil, 0
	s.Epochs, s.TargetKL, s.Minibatches, s.MinibatchSize = 1, 0, 1, 0
	source := &small{Source: w.source, together: w.algorithm.Needs().Together, steps: s.Steps}
	trainer, err := train.New(w.policy, source, &busy{w.algorithm}, s, hooks)
	if err != nil {
		return err
	}
	defer trainer.Close()
	var before, after phases
	for range min(trialSteps, s.Steps) {
		before = phasesOf(hooks.Phases)
		if _, err := trainer.Step(ctx); err != nil {
			return err
		}
		after = phasesOf(hooks.Phases)
	}
	return t.describe(w, source, phases{after.rollout - before.rollout, after.reward - before.reward, after.update - before.update})
}

// small is a source of small steps: the first samples of those that another gives, cut. Of a data set it takes the step with
// most tokens, which decides how much memory a run needs.
type small struct {
	train.Source
	together bool // samples of a unit are not divided
	steps    int  // of the run

	heavy                    int       // step of the data set that has most tokens
	first                    rl.Sample // of the first step, before it was cut
	samples, tokens, longest int       // of the first step, as the source gave it
	step                     *rl.Step  // the last one, cut
}

// ofData says whether the samples are those of a data set.
func (s *small) ofData() bool {
	_, ok := s.Source.(interface{ PerEpoch() int })
	return ok
}

// Next implements train.Source.
func (s *small) Next(ctx context.Context, at rl.At) (step *rl.Step, err error) {
	if s.ofData() {
		if s.step == nil {
			if s.heavy, err = s.heaviest(ctx, at); err != nil {
				return nil, err
			}
		}
		at.Step = s.heavy
	}
	if step, err = s.Source.Next(ctx, at); err != nil || len(step.Samples) == 0 {
		return step, err
	}
	if s.step == nil {
		s.first, s.samples, s.tokens = *step.Samples[0], len(step.Samples), rl.Tokens(step.Samples)
		for _, x := range step.Samples {
			s.longest = max(s.longest, len(x.Tokens))
		}
	}
	unit := step.Samples[:min(trialSamples, len(step.Samples))]
	if s.together {
		unit = rl.Units(step.Samples)[0]
	}
	step.Samples, step.KLSamples = unit, step.KLSamples[:min(1, len(step.KLSamples))]
	for _, x := range slices.Concat(step.Samples, step.KLSamples) {
		shorten(x, max(2, trialTokens/len(unit)))
	}
	s.step = step
	return step, nil
}

// heaviest is the step of a data set that has most tokens.
func (s *small) heaviest(ctx context.Context, at rl.At) (heaviest int, err error) {
	most := 0
	for i := range min(s.steps, trialScan) {
		step, err := s.Source.Next(ctx, rl.At{Step: i, Version: at.Version})
		if err != nil {
			return 0, err
		}
		if n := rl.Tokens(step.Samples); n > most {
			most, heaviest = n, i
		}
	}
	return heaviest, nil
}

// shorten leaves the last action of a sample and the tokens before it, n tokens in all; of a text with a label its beginning.
func shorten(x *rl.Sample, n int) {
	if len(x.Tokens) <= n {
		return
	}
	if x.Rows == nil {
		x.Tokens = x.Tokens[:n]
		return
	}
	end := min(len(x.Tokens), x.Rows[len(x.Rows)-1]+2)
	begin := max(0, end-n)
	x.Tokens = x.Tokens[begin:end]
	from, _ := slices.BinarySearch(x.Rows, begin)
	rows := make([]int, len(x.Rows)-from)
	for i, row := range x.Rows[from:] {
		rows[i] = row - begin
	}
	x.Rows, x.Actions = rows, x.Actions[from:]
	if x.Rewards != nil {
		x.Rewards = x.Rewards[from:]
	}
	x.Context = x.Context[max(0, len(x.Context)-n):]
	if x.Teacher != nil {
		x.Teacher = x.Teacher[from:]
	}
	if x.BehaviorLogProbs != nil {
		x.BehaviorLogProbs = x.BehaviorLogProbs[from:]
	}
}

// busy is an algorithm that has something to learn even if all rewards are equal: a dry run takes the time and the memory
// of a step.
type busy struct{ algo.Algorithm }

// Needs implements algo.Algorithm: if it chooses no samples, all stay, better and worse ones in turn.
func (a *busy) Needs() algo.Needs {
	needs := a.Algorithm.Needs()
	if choose := needs.Choose; choose != nil {
		needs.Choose = func(step *rl.Step) {
			all := step.Samples
			if choose(step); len(step.Samples) == 0 {
				step.Samples = all
				for i, x := range all {
					x.Fill(float64(1 - 2*(i%2)))
				}
			}
		}
	}
	return needs
}

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

// describe adds a stage to the summary.
func (t *trainer) describe(w *work, source *small, took phases) error {
	c, s := t.config, &t.trial.sheet
	s.Head("%s: %s", c.Task.Name, w.what)
	if !strings.HasPrefix(w.from, c.General.OutputDir) {
		s.Row("model", "%s", w.from)
	}
	if t.trial.stages++; t.trial.stages > 1 {
		s.Row("starts from", "the dry run of the stage before, which has learnt little: the run's completions will differ")
	}
	total, trainable := w.policy.Parameters()
	s.Row("trainable", "%s of %s parameters", report.Count(trainable), report.Count(total))
	data := t.dataName()
	for _, split := range w.splits {
		if split.Rows > 0 { // held-out problems that are made up come as they are needed
			data += fmt.Sprintf(", %s %s", split.Name, report.Count(int64(split.Rows)))
		}
	}
	s.Row("data", "%s", data)
	s.Row("output", "%s", strings.Replace(t.stageDir(w.stage), c.General.OutputDir, t.trial.output, 1))
	if source.step == nil || len(source.step.Samples) == 0 {
		s.Row("steps", "%s; the first gave no sample to learn from", report.Count(int64(w.settings.Steps)))
		return nil
	}
	if err := t.describeStep(w, source, took); err != nil {
		return err
	}
	return t.describeSamples(w, source)
}

// describeStep says what a step of the run is, what was measured of a small one, and what follows for the run.
func (t *trainer) describeStep(w *work, source *small, took phases) error {
	c, s, n := t.config, &t.trial.sheet, t.whole(w, source)
	s.Row("steps", "%s", report.Count(int64(w.settings.Steps)))
	upTo := "up to "
	if source.ofData() {
		upTo = "" // the one with most tokens
	}
	s.Row("a step", "%s with %s%s tokens, the longest %s; %s", report.Plural(n.samples, "sample"), upTo, report.Count(int64(n.tokens)), report.Count(int64(n.longest)), report.Plural(n.updates, "update"))
	if w.stage == supervisedStage && len(w.splits) > 0 && c.Supervised != nil {
		if rest := w.splits[0].Rows % c.Supervised.BatchSize; rest > 0 && c.Supervised.MaxSteps == 0 {
			s.Row("", "%d does not divide %s: the last batch of an epoch has %d", c.Supervised.BatchSize, report.Plural(w.splits[0].Rows, "row"), rest)
		}
	}
	if text := advice(w); text != "" {
		s.Row("learning rate", "%s", text)
	}
	learned := rl.Tokens(source.step.Samples)
	s.Row("measured", "%s with %s: rollout %s, reward %s, update %s", report.Plural(len(source.step.Samples), "sample"), report.Plural(learned, "token"),
		report.Duration(took.rollout), report.Duration(took.reward), report.Duration(took.update))
	step := t.stepTime(w, source, took, n)
	s.Row("extrapolated", "at most about %s/step, %s in all without evaluations", report.Duration(step), report.Duration(step*time.Duration(w.settings.Steps)))
	expected, err := t.expected(w, source, n)
	t.trial.memory = max(t.trial.memory, expected)
	return err
}

// farRate is by what factor a learning rate may differ from the advised one without a word.
const farRate = 5

// advice warns of a learning rate for SFT of a language model that is far from the advised one; "" = it is not.
func advice(w *work) string {
	p, ok := w.policy.(*policy.CausalLM)
	if !ok || w.stage != supervisedStage {
		return ""
	}
	low, high := p.AdvisedRate()
	rate, kind := w.settings.LearningRate, "an adapter"
	if p.Full() {
		kind = "all weights"
	}
	switch {
	case rate > farRate*high:
		return fmt.Sprintf("warning: lower --learning-rate %g if the loss diverges: it is %.0f times the %.1e of the rule of thumb for %s of this model", rate, rate/high, high, kind)
	case rate < low/farRate:
		return fmt.Sprintf("warning: raise --learning-rate %g if the loss falls slowly: it is 1/%.0f of the %.1e of the rule of thumb for %s of this model", rate, low/rate, low, kind)
	}
	return ""
}

// stepTime is how long a step of the run takes at most.
func (t *trainer) stepTime(w *work, source *small, took phases, n wholeStep) time.Duration {
	token := took.update / time.Duration(rl.Tokens(source.step.Samples))
	step := token*time.Duration(n.tokens*max(1, w.settings.Epochs)) + took.reward*time.Duration(n.played)/trialSamples
	if t.config.LabelRollouts != nil {
		return step + took.rollout*time.Duration(n.played)/trialSamples
	}
	if n.played == 0 {
		return step
	}
	// A pass that generates a token of each completion reads all weights, however few completions there are; of many, each
	// token also takes the time of a forward pass, a third of an update.
	passes := 0
	for _, x := range source.step.Samples {
		passes = max(passes, x.Len())
	}
	waves := (n.played + t.slots() - 1) / t.slots()
	return step + took.rollout*time.Duration(waves*n.generated)/time.Duration(passes) + token/3*time.Duration(n.played*n.longest)
}

// wholeStep is a step of the run itself.
type wholeStep struct {
	samples, tokens, longest, updates int // trained on
	played, generated                 int // samples, and tokens of each at most; 0 for a data set
}

// whole is a step of the run, by the options and, for the length of prompts, by what the dry run has seen.
func (t *trainer) whole(w *work, source *small) (n wholeStep) {
	c := t.config
	n.samples, n.tokens, n.longest = source.samples, source.tokens, source.longest
	if !source.ofData() {
		n.played, n.generated = t.sizes(w.stage)
		n.samples = n.played
		n.longest = len(source.first.Tokens) - source.first.Len() + n.generated
		if c.Replay != nil {
			n.samples = c.Replay.NumUpdateSteps
		} else if c.LabelReplay != nil {
			n.samples = c.LabelReplay.Updates * c.LabelRollouts.BatchSize
		}
		n.tokens = n.samples * n.longest
	}
	n.updates = max(1, w.settings.Minibatches)
	if size := w.settings.MinibatchSize; size > 0 {
		n.updates = (n.samples + size - 1) / size
	}
	n.updates *= max(1, w.settings.Epochs)
	return n
}

// expected is how much memory a stage takes at most: what the dry run took, the activations of a larger forward pass, the KV
// cache of more and longer completions, and copies of weights.
func (t *trainer) expected(w *work, source *small, n wholeStep) (int64, error) {
	copies, err := copiedBytes(w)
	if err != nil {
		return 0, err
	}
	c, epochs := t.config, max(1, w.settings.Epochs)
	pass := n.tokens * epochs / n.updates
	if limit := w.settings.MicroTokens; limit > 0 {
		pass = min(pass, limit)
	}
	pass = max(pass, n.longest) - rl.Tokens(source.step.Samples)
	memory := run.PeakMemory() + trialRest + copies + w.policy.ActivationBytes(w.settings.Checkpoint)*int64(max(0, pass))
	if c.Answers != nil {
		slots := samplerSlots
		if w.stage == rlStage {
			slots = t.slots()
		}
		memory += w.policy.CacheBytes() * int64(slots*(n.longest+c.LongestAnswer()))
	}
	return memory, nil
}

// describeSamples shows what is learnt from: the first sample of a supervised stage, with its mask, or the first prompt and
// the rewards of some completions.
func (t *trainer) describeSamples(w *work, source *small) error {
	s := &t.trial.sheet
	p, language := w.policy.(*policy.CausalLM)
	if source.step.Records == nil {
		if !language {
			return nil
		}
		s.Head("First sample")
		return s.TrainedTokens(p, &source.first)
	}
	records, err := source.step.Records(trialSamples)
	if err != nil || len(records) == 0 {
		return err
	}
	shown := records[0].Shown
	if p, ok := w.policy.(*policy.Classifier); ok && shown != "" {
		if shown, _, err = p.Shown(shown); err != nil {
			return err
		}
	}
	if shown != "" {
		s.Head("First prompt")
		s.Block(shown)
	}
	s.Head("Rewards of %s, cut after %d tokens", report.Plural(len(records), "sample"), trialNew)
	for _, r := range records[:min(trialSamples, len(records))] {
		each := ""
		for _, part := range r.Each {
			each += fmt.Sprintf(", %s %.4g", part.Name, float64(part.Value))
		}
		s.Row(fmt.Sprintf("reward %.4g", float64(r.Reward)), "%q%s", report.Shortened(r.Written, 60), each)
	}
	return nil
}
