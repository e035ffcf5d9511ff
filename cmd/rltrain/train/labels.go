package train

import (
	"context"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// labelRun trains a classifier.
type labelRun struct {
	*trainer
	data    labelled
	results []labelResult // of the stages, for the comparison
}

// labelled is the labelled text of a run in its three parts.
type labelled struct {
	labels           []string
	train, val, test []dataset.Row
	supervised       []dataset.Row // of train, for the supervised stage
	reinforced       []dataset.Row // of train, for the RL stage
}

// labelledRows reads the rows, divides them and fixes the labels.
func (t *trainer) labelledRows(ctx context.Context) (d labelled, err error) {
	source := t.config.Settings.(envs.RowSource)
	rows, err := source.Rows(ctx, t.setup())
	if err != nil {
		return d, t.suggestTask(ctx, t.config.Blame(err))
	}
	if d.labels, err = source.LabelsOf(rows); err != nil {
		return d, err
	}
	d.train, d.val, d.test = dataset.Split(rows, t.config.General.Seed)
	for _, part := range []struct {
		name string
		rows []dataset.Row
	}{{"training", d.train}, {"validation", d.val}, {"test", d.test}} {
		if len(part.rows) == 0 {
			return d, fmt.Errorf("%s: no %s rows; add rows, or name all three parts in a split column", t.dataName(), part.name)
		}
	}
	t.review(rows, d)
	if err := t.warnOfOverlap(d); err != nil {
		return d, err
	}
	d.supervised, d.reinforced = d.train, d.train
	if o := t.config.LabelRollouts; o != nil && t.config.Supervised != nil && o.Share > 0 {
		// A policy is nearly certain of the rows that it was trained on: they leave little to gain, and say nothing of how sure
		// it should be of others.
		if rest, apart := dataset.SetApart(d.train, o.Share); len(apart) > 0 {
			d.supervised, d.reinforced = rest, apart
			if err := t.console.Print(fmt.Sprintf("Split: %d labelled rows for supervised training, %d others for RL, which sees whether a label was right and not which one is", len(rest), len(apart))); err != nil {
				return d, err
			}
		}
	}
	return d, nil
}

// warnOfOverlap says what makes the figures on held-out rows unreliable.
func (t *trainer) warnOfOverlap(d labelled) error {
	for _, part := range []struct {
		name string
		rows []dataset.Row
	}{{"validation", d.val}, {"test", d.test}} {
		texts, labels := dataset.Overlap(d.train, part.rows)
		if len(texts) > 0 {
			if err := t.console.Print(fmt.Sprintf("warning: remove duplicates: %d of %d %s texts are training texts too (first: %s:%d), so their figures are too good", len(texts), len(part.rows), part.name, texts[0].File, texts[0].Line)); err != nil {
				return err
			}
		}
		if len(labels) > 0 {
			if err := t.console.Print(fmt.Sprintf("warning: add training rows: %s rows have labels without one: %s", part.name, strings.Join(labels, ", "))); err != nil {
				return err
			}
		}
	}
	return nil
}

// examples are the rows as a policy sees them.
type examples struct{ train, val, test policy.Examples }

func (t *labelRun) encode(p *policy.Classifier, train []dataset.Row) (e examples, err error) {
	for _, part := range []struct {
		into *policy.Examples
		rows []dataset.Row
	}{{&e.train, train}, {&e.val, t.data.val}, {&e.test, t.data.test}} {
		if *part.into, err = p.Encode(part.rows); err != nil {
			return e, err
		}
	}
	return e, nil
}

func (t *labelRun) run(ctx context.Context) error {
	start := t.config.Pretrained()
	if t.config.Supervised != nil {
		if err := t.oneStage(ctx, supervisedStage, start, t.data.supervised, t.supervise); err != nil {
			return err
		}
		start = t.stageDir(supervisedStage)
	}
	if t.config.RL != nil {
		if err := t.oneStage(ctx, rlStage, start, t.data.reinforced, t.reinforce); err != nil {
			return err
		}
	}
	if t.trial != nil {
		return nil
	}
	return t.compare(ctx)
}

// oneStage trains a stage from the policy in start, or without one from a new policy, and measures on the test rows what
// it gives. build fills in how it learns.
func (t *labelRun) oneStage(ctx context.Context, name, start string, rows []dataset.Row, build func(context.Context, *work, *policy.Classifier, examples) error) error {
	// Everything that can be wrong with what the user gave is found before the output folder is touched.
	p, err := t.beginning(ctx, start)
	if err != nil {
		return err
	}
	defer p.Close()
	e, err := t.encode(p, rows)
	if err != nil {
		return err
	}
	w := &work{stage: name, from: p.BaseModel, policy: p, splits: []report.Split{
		{Name: "train", Rows: e.train.Len()}, {Name: "validation", Rows: e.val.Len()}, {Name: "test", Rows: e.test.Len()},
	}}
	for _, ids := range e.train.IDs {
		w.longest = max(w.longest, len(ids))
	}
	defer w.close()
	if err := build(ctx, w, p, e); err != nil {
		return err
	}
	if p.Pooling == policy.PoolScore {
		shown, n, err := p.Shown(t.data.train[0].Text)
		if err != nil {
			return err
		}
		w.note(fmt.Sprintf(firstPromptNote, n, shown))
	}
	if cut := e.train.Cut + e.val.Cut + e.test.Cut; cut > 0 {
		w.note(fmt.Sprintf("%d of %d texts truncated to %d tokens", cut, e.train.Len()+e.val.Len()+e.test.Len(), p.MaxLength))
	}
	finish := w.finish
	w.finish = func(ctx context.Context, stage *run.Stage, result train.Result) error {
		if err := finish(ctx, stage, result); err != nil {
			return err
		}
		return t.write(ctx, stage, p, e, name)
	}
	finished, err := t.learn(ctx, w)
	if err != nil || !finished {
		return err
	}
	// Loaded for training, so that it gives the same bits as in the process that has trained it.
	dir := t.stageDir(name)
	earlier, err := policy.LoadClassifier(ctx, t.hub, dir, unlessAuto(t.config.Labels.DType), true)
	if err != nil {
		return err
	}
	defer earlier.Close()
	earlier.SetClock(t.template.Now)
	return t.measure(ctx, earlier, e.test, name, dir)
}

// supervise builds the supervised stage.
func (t *labelRun) supervise(_ context.Context, w *work, p *policy.Classifier, e examples) error {
	c := t.config
	source, err := epochs.New(e.train.Samples(), c.Supervised.BatchSize, 0, c.General.Seed)
	if err != nil {
		return err
	}
	w.what, w.source, w.algorithm, w.label, w.unit = "supervised fine-tuning with LoRA", source, &c.LabelSFT.SFT, "supervised", "update"
	w.settings = t.settings(updates(c.Supervised.Epochs, c.Supervised.MaxSteps, source.PerEpoch()), c.Supervised.Optimisation, c.Supervised.Stopping, labelMicroTokens, "loss")
	w.settings.HeadRate = c.LabelSFT.HeadLearningRate
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		best := (found.BestStep + source.PerEpoch() - 1) / source.PerEpoch()
		return stage.Printf("Supervised training complete after %s. Best epoch: %d (%s)", report.Plural(found.Steps, "update"), best, c.LabelSFT.Metric)
	}
	w.settings.Evaluate, err = evaluate.Labels(p, e.val, c.LabelSFT.Metric, source.PerEpoch(), nil)
	return err
}

// beginning is the policy in start, or without one a new policy on --model.
func (t *labelRun) beginning(ctx context.Context, start string) (*policy.Classifier, error) {
	c := t.config
	if start != "" {
		return t.load(ctx, start)
	}
	model, err := t.baseModel(ctx)
	if err != nil {
		return nil, err
	}
	made := adapter(c.NewLabel.LoRA.Adapter, model, c.General.Seed)
	made.Dropout, made.Labels, made.Pooling, made.MaxLength = c.NewLabel.LoRA.Dropout, t.data.labels, unlessAuto(c.NewLabel.Pooling), c.Labels.MaxLength
	made.DType, made.Template = unlessAuto(c.Labels.DType), t.template
	if c.Policy.Scores() {
		task, ok := c.Settings.(envs.Prompting)
		if !ok {
			return nil, c.Errorf("policy", "task %s has no prompt to score labels with", c.Task.Name)
		}
		made.Prompt = func(asText bool) envs.Observation { return task.Prompt(t.data.labels, asText) }
	}
	return policy.NewClassifier(made)
}

// load loads a policy, by its folder or name, to go on training it.
func (t *labelRun) load(ctx context.Context, dir string) (*policy.Classifier, error) {
	c := t.config
	p, err := policy.LoadClassifier(ctx, t.hub, dir, unlessAuto(t.config.Labels.DType), true)
	if err != nil {
		return nil, c.Errorf("pretrained_model", "%v", err)
	}
	p.SetClock(t.template.Now)
	if !p.Adapted() {
		p.Close()
		return nil, c.Errorf("pretrained_model", "%s holds a merged model without an adapter to train", dir)
	}
	if scores := p.Pooling == policy.PoolScore; c.Source("policy") != (config.Source{}) && scores != c.Policy.Scores() {
		pooling := p.Pooling
		p.Close()
		return nil, c.Errorf("policy", "the policy in %s reads texts in another way (%s); omit --policy", dir, pooling)
	}
	switch {
	case c.Source("model") == (config.Source{}):
		c.General.Model = p.BaseModel
	case dir == c.Pretrained() && c.General.Model != p.BaseModel && !files.Same(c.General.Model, p.BaseModel):
		base := p.BaseModel
		p.Close()
		return nil, c.Errorf("model", "%s: the policy in %s is an adapter of %s; omit --model", c.General.Model, dir, base)
	}
	return p, nil
}

// reinforce builds the RL stage. If no stage of this run has trained the policy, it is measured first.
func (t *labelRun) reinforce(ctx context.Context, w *work, p *policy.Classifier, e examples) error {
	c, o := t.config, t.config.LabelRollouts
	rewards, done, err := t.labelRewards(ctx, p.Labels)
	if err != nil {
		return err
	}
	w.closing(done)
	if c.Supervised == nil && t.trial == nil {
		if err := t.measure(ctx, p, e.test, "before RL", c.Pretrained()); err != nil {
			return err
		}
	}
	learning, way := c.Learning, c.RL.Algorithm
	if rewards.ReadsProbs() { // which a policy gradient does not see
		if c.LabelReplay != nil {
			return c.Errorf("reward", "%s reads the policy's own probabilities, which change while choices wait in a replay buffer; choose another --algorithm than %s", strings.Join(rewards.Names(), ","), way)
		}
		way = "the exact gradient of the expected reward"
		expected := &algo.Expected{Rewards: rewards}
		expected.Clip = learning.Needs().Clip
		learning = expected
	}
	whole := learning.Needs().Ratio == algo.NoRatio && c.LabelReplay == nil
	w.what, w.algorithm, w.label, w.unit = "reinforcement learning with "+way, learning, c.RL.Algorithm, "rollout"
	w.settings = t.reinforced(o.Episodes, labelMicroTokens, "reward")
	w.settings.Samples = o.Samples
	if !whole {
		w.settings.MinibatchSize = o.BatchSize
	}
	if w.settings.Evaluate, err = evaluate.Labels(p, e.val, bestMetric(o.Metric, rewards.Names()), o.EvalEvery, rewards); err != nil {
		return err
	}
	var player *rollout.Labels
	w.open = func(stage *run.Stage) (err error) {
		if player, err = rollout.NewLabels(p, textsOf(t.data.reinforced), e.train, rewards, rollout.LabelsConfig{
			LabelOptions: t.trial.limitLabels(o.LabelOptions), Whole: whole, Steps: o.Episodes, Values: learning.Needs().Values, Epsilon: c.LabelReplay != nil,
			MicroTokens: w.settings.MicroTokens, Seed: c.General.Seed, Log: stage.Keepf, Algorithm: c.RL.Algorithm,
		}); err != nil {
			return err
		}
		w.source = player
		if c.LabelReplay != nil {
			w.source, err = rollout.NewLabelReplay(player, rollout.LabelReplayConfig{
				LabelReplayOptions: *c.LabelReplay, BatchSize: o.BatchSize, Steps: o.Episodes, Seed: c.General.Seed,
			})
		}
		return err
	}
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		if err := stage.Printf("%s training complete. Best return: %.4f (best episode by validation: %d)", strings.ToUpper(c.RL.Algorithm), player.BestReturn(), found.BestStep); err != nil {
			return err
		}
		return save(stage, "rewards.json", player.Scores())
	}
	return nil
}

// labelRewards are those of the RL stage.
func (t *labelRun) labelRewards(ctx context.Context, labels []string) (rewards *reward.Labels, done func(), err error) {
	spec, key := t.config.LabelRollouts.RewardSpec()
	models := shared.NewModels(ctx, t.hub)
	models.Now = t.template.Now
	if rewards, err = reward.ParseLabels(spec, labels, reward.Options{Timeout: t.config.LabelRollouts.RewardTime.Limit(), Warn: t.console.Warn, Critic: models.Critic}); err != nil {
		models.Close()
		return nil, nil, t.config.Errorf(key, "%v", err)
	}
	return rewards, func() { rewards.Close(); models.Close() }, nil
}

func textsOf(rows []dataset.Row) []string {
	texts := make([]string, len(rows))
	for i, r := range rows {
		texts[i] = r.Text
	}
	return texts
}

// bestMetric is the validation figure that picks the best weights: with auto the one that the reward is about.
func bestMetric(metric string, rewards []string) string {
	if metric != "auto" {
		return metric
	}
	if len(rewards) == 1 {
		switch rewards[0] {
		case "accuracy":
			return evaluate.MetricAccuracy
		case "f1":
			return evaluate.MetricF1Macro
		case "calibration":
			return evaluate.MetricBrier
		}
	}
	return evaluate.MetricReward
}

// labelResult is a finished stage on the test rows.
type labelResult struct {
	name       string
	dir        string
	evaluation rl.Evaluation
	truth      []int
	probs      [][]float32
}

// measure adds how the policy does on the test rows.
func (t *labelRun) measure(ctx context.Context, p *policy.Classifier, test policy.Examples, name, dir string) error {
	probs, err := p.Probs(ctx, test.IDs)
	if err != nil {
		return err
	}
	t.results = append(t.results, labelResult{name: name, dir: dir, truth: test.Labels, probs: probs, evaluation: rl.Evaluate(p.Labels, test.Labels, probs)})
	return nil
}
