package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// work is one stage of training: a policy learns from a source by an algorithm, settings.Evaluate watches it, and finish
// writes what comes of it. The functions that build one are in supervised.go, reinforce.go, preferences.go and labels.go.
type work struct {
	stage  string // as its folder's name ends
	what   string // in words, for the header
	from   string // what the policy begins as: a model or a folder
	policy learner
	splits []report.Split
	notes  []string // printed before the first step

	source      train.Source
	algorithm   algo.Algorithm
	settings    train.Config
	longest     int    // tokens of the longest sample; 0 = unknown
	label, unit string // of the progress bar

	// open makes what needs the stage's folder, such as the source of rollouts; nil = nothing does.
	open func(stage *run.Stage) error
	// finish evaluates the trained policy and writes results beside its weights.
	finish func(ctx context.Context, stage *run.Stage, result train.Result) error

	closers []func()
}

// learner is a policy that a stage trains and saves.
type learner interface {
	policy.Policy
	Parameters() (total, trainable int64)
	ActivationBytes(checkpointed bool) int64
	CacheBytes() int64
	Save(dir string) error
}

// closing has close called when the work is over.
func (w *work) closing(close func()) { w.closers = append(w.closers, close) }

// close frees what the work holds, the last first.
func (w *work) close() {
	for i := len(w.closers) - 1; i >= 0; i-- {
		w.closers[i]()
	}
}

// note adds a line to the notes unless it is empty.
func (w *work) note(line string) {
	if line != "" {
		w.notes = append(w.notes, line)
	}
}

// count notes something about n rows, unless there are none.
func (w *work) count(n int, of, text string) {
	if n > 0 {
		w.note(report.Plural(n, of) + " " + text)
	}
}

// learn trains a stage, unless an earlier process has finished it; then finished is true. A dry run tries some steps of it.
func (t *trainer) learn(ctx context.Context, w *work) (finished bool, err error) {
	if !t.limit.IsZero() && time.Now().After(t.limit) {
		return false, run.ErrTimeUp
	}
	return t.stage(w.stage, func(stage *run.Stage) error {
		if !stage.Resumed() {
			if err := t.begin(stage, w); err != nil {
				return err
			}
		}
		if w.open != nil {
			if err := w.open(stage); err != nil {
				return err
			}
		}
		t.keep(stage, w)
		hooks := t.estimated(stage, w)
		ctx = hooks.Phases.Show(ctx)
		if t.trial != nil {
			if err := t.try(ctx, w, hooks); err != nil {
				return err
			}
			return w.policy.Save(stage.Dir())
		}
		result, err := train.Run(ctx, w.policy, w.source, w.algorithm, w.settings, hooks)
		if err != nil {
			return err
		}
		if t.saves(stage, w, result) {
			if err := w.policy.Save(stage.Dir()); err != nil {
				return err
			}
		}
		if err := drawCurves(stage); err != nil {
			return err
		}
		hooks.Phases.Begin(run.PhaseEvaluation)
		return w.finish(ctx, stage, result)
	})
}

// keep has the stage save the weights of --keep.
func (t *trainer) keep(stage *run.Stage, w *work) {
	switch which := t.config.Saving.Weights; {
	case w.settings.Evaluate == nil:
	case which == "last":
		w.settings.Evaluate.KeepBest = false
	case which == "both":
		w.settings.KeepLast = func() error {
			dir := filepath.Join(stage.Dir(), "last")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			return w.policy.Save(dir)
		}
	}
}

// saves says whether the weights are worth saving. An adapter of a language model that is that of the start is not.
func (t *trainer) saves(stage *run.Stage, w *work, result train.Result) bool {
	if result.Unimproved == "" {
		return true
	}
	what, saved := map[bool]string{true: "RL", false: "Training"}[w.stage == rlStage && t.config.Pairs == nil], "the saved weights are those of the start"
	p, language := w.policy.(*policy.CausalLM)
	_, far := w.policy.(*tinker.Policy)
	unsaved := far || language && !p.Full()
	if unsaved {
		saved = "no adapter was saved; use " + w.from
		if last, _, _, err := run.LatestCheckpoint(stage.Dir()); err == nil && last != "" && !far {
			saved += ", or the adapter after training, " + filepath.Join(stage.Home(), strings.TrimPrefix(last, stage.Dir()))
		}
	}
	judged := ""
	if n := w.settings.Evaluate.Rows; n > 0 && rl.FewRows(n, "") != "" {
		judged = " on " + report.Plural(n, "held-out row")
	}
	t.verdict = fmt.Sprintf("%s did not improve on the start%s (%s): %s", what, judged, result.Unimproved, saved)
	stage.End(t.verdict)
	return !unsaved
}

// begin prints what is about to happen.
func (t *trainer) begin(stage *run.Stage, w *work) error {
	device, err := torch.DeviceInUse()
	if err != nil {
		return err
	}
	total, trainable := w.policy.Parameters()
	header := report.Header{
		Task: t.config.Task.Name, Stage: w.what, Model: w.from, Total: total, Trainable: trainable, Device: device,
		Threads: torch.Threads(), Data: t.dataName(), Output: stage.Home(), Splits: w.splits,
	}
	if earlier := stage.Home(); stage.Dir() != earlier {
		w.note("The earlier run in " + earlier + " moves to " + earlier + ".1 when this one saves")
	}
	plan, err := t.plan(w)
	if err != nil {
		return err
	}
	w.note(plan)
	for _, line := range append([]string{header.String()}, w.notes...) {
		if err := stage.Printf("%s", line); err != nil {
			return err
		}
	}
	return nil
}

// settings are those of the trainer that every stage has.
func (t *trainer) settings(steps int, o train.Optimisation, s train.Stopping, microTokens int, summary string) train.Config {
	c := t.config
	return train.Config{Steps: steps, Optimisation: o, Stopping: s, Memory: t.memory(microTokens), Seed: c.General.Seed, Summary: summary}
}

// reinforced are the settings of a stage that learns from rewards or preferences.
func (t *trainer) reinforced(steps, microTokens int, summary string) train.Config {
	c := t.config
	settings := t.settings(steps, c.RL.Optimisation, c.RL.Stopping, microTokens, summary)
	if c.Rounds != nil {
		settings.Signal = c.Rounds.Signal
	} else if c.LabelRollouts != nil {
		settings.Signal = c.LabelRollouts.Signal
	}
	if c.Updates != nil {
		settings.Updates = *c.Updates
	}
	if c.Regularisation != nil {
		settings.Regularisation = *c.Regularisation
	}
	if c.Uncertain != nil {
		settings.Uncertain = *c.Uncertain
	}
	if c.OffPolicy != nil {
		settings.OffPolicy = *c.OffPolicy
	}
	if c.Values != nil {
		settings.ValueRate = c.Values.LearningRate
	}
	return settings
}

// memory is how passes fit into memory: with tokens of usual unless the user sets them. A GPU waits for the start of a
// pass's operators, and if its memory is too small for this, the pass is halved.
func (t *trainer) memory(usual int) train.Memory {
	m := t.config.General.Memory
	if m.MicroTokens == 0 {
		if o := t.config.Tokens; o != nil && o.Engine != "" {
			return m // the service divides batches itself
		}
		m.MicroTokens = usual
		if device, err := torch.DeviceInUse(); err == nil && device != "cpu" {
			m.MicroTokens *= 4
		}
	}
	return m
}

// Tokens per forward pass: they keep a step's activations under a few gigabytes at the sizes of common encoders and of
// small language models.
const (
	labelMicroTokens = 16384
	tokenMicroTokens = 4096
)

// updates is how many updates a data set is learnt for.
func updates(epochs, maxSteps, perEpoch int) int {
	if maxSteps > 0 {
		return maxSteps
	}
	return epochs * perEpoch
}

// streamValidation draws the rows that are kept for validation.
const streamValidation = 100

// keepForValidation takes a fraction of the rows out of those to train on; both parts keep their order.
func keepForValidation[T any](rows []T, fraction float64, seed uint64) (train, held []T) {
	kept := map[int]bool{}
	for _, i := range rl.Stream(seed, streamValidation).Perm(len(rows))[:int(fraction*float64(len(rows)))] {
		kept[i] = true
	}
	for i, row := range rows {
		if kept[i] {
			held = append(held, row)
		} else {
			train = append(train, row)
		}
	}
	return train, held
}
