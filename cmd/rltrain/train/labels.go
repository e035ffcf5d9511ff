package train

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/reward"
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
	data labelled
}

// labelled is the labelled text of a run in its three parts.
type labelled struct {
	labels           []string
	train, val, test []dataset.Row
	imitated         []dataset.Row // of train, by the supervised stage
	reinforced       []dataset.Row // of train, by the RL stage
}

// labelledRows reads the rows, divides them and fixes the labels.
func (t *trainer) labelledRows(ctx context.Context) (d labelled, err error) {
	source := t.config.Settings.(envs.RowSource)
	rows, err := source.Rows(ctx, t.setup())
	if err != nil {
		return d, t.config.Blame(err)
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
			return d, fmt.Errorf("%s: no rows are left for %s; it needs more rows, or a split column that has all three parts", t.dataName(), part.name)
		}
	}
	if err := t.warnOfOverlap(d); err != nil {
		return d, err
	}
	d.imitated, d.reinforced = d.train, d.train
	if o := t.config.LabelRollouts; o != nil && t.config.Imitation != nil && o.Share > 0 {
		// A policy is nearly certain of the rows that it has imitated: there is little left to be paid for, and they do not
		// tell how sure it should be of others.
		if rest, apart := dataset.SetApart(d.train, int(math.Round(1/o.Share))); len(apart) > 0 {
			d.imitated, d.reinforced = rest, apart
		}
	}
	return d, nil
}

// warnOfOverlap tells what makes the figures on held-out rows say less than they seem.
func (t *trainer) warnOfOverlap(d labelled) error {
	for _, part := range []struct {
		name string
		rows []dataset.Row
	}{{"validation", d.val}, {"test", d.test}} {
		texts, labels := dataset.Overlap(d.train, part.rows)
		if len(texts) > 0 {
			if err := t.console.Print(fmt.Sprintf("warning: %d of %d %s texts are training texts too, the first in %s:%d: figures on them are too good", len(texts), len(part.rows), part.name, texts[0].File, texts[0].Line)); err != nil {
				return err
			}
		}
		if len(labels) > 0 {
			if err := t.console.Print(fmt.Sprintf("warning: %s rows have labels that no training row has: %s", part.name, strings.Join(labels, ", "))); err != nil {
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
	var results []labelResult
	start := t.config.Pretrained()
	if t.config.Imitation != nil {
		result, err := t.imitate(ctx)
		if err != nil {
			return err
		}
		results, start = append(results, result), result.dir
	}
	if t.config.RL != nil {
		more, err := t.reinforce(ctx, start)
		if err != nil {
			return err
		}
		results = append(results, more...)
	}
	return t.compare(ctx, results)
}

// imitate trains the supervised stage.
func (t *labelRun) imitate(ctx context.Context) (result labelResult, err error) {
	c := t.config
	// Everything that can be wrong with what the user gave is found before the output folder is touched.
	p, err := t.startingPolicy(ctx)
	if err != nil {
		return result, err
	}
	defer p.Close()
	e, err := t.encode(p, t.data.imitated)
	if err != nil {
		return result, err
	}
	source, err := epochs.New(e.train.Samples(), c.Imitation.BatchSize, 0, c.General.Seed)
	if err != nil {
		return result, err
	}
	t.trial.starts(source)
	judge, err := evaluate.Labels(p, e.val, c.LabelSFT.Metric, source.PerEpoch(), nil)
	if err != nil {
		return result, err
	}
	return t.trained(ctx, supervisedStage, p, e, "supervised fine-tuning with LoRA", func(stage *run.Stage) error {
		found, err := train.Run(ctx, p, source, &c.LabelSFT.SFT, train.Config{
			Steps: imitationSteps(c.Imitation, source), Optimisation: c.Imitation.Optimisation, HeadRate: c.LabelSFT.HeadLearningRate,
			MicroTokens: t.microTokens(labelMicroTokens), OOMRetry: c.General.OOMRetry, Seed: c.General.Seed, Evaluate: judge, Stopping: c.Imitation.Stopping, Summary: "loss",
		}, stage.Hooks("supervised", "update"))
		if err != nil {
			return err
		}
		best := (found.BestStep + source.PerEpoch() - 1) / source.PerEpoch()
		return stage.Printf("Supervised training complete after %s. Best epoch: %d (%s)", report.Plural(found.Steps, "update"), best, c.LabelSFT.Metric)
	})
}

// labelMicroTokens keeps a step's activations under a few gigabytes at the sizes of common encoders.
const labelMicroTokens = 16384

// imitationSteps is how many updates a data set is imitated for.
func imitationSteps(o *config.Imitation, source *epochs.Source) int {
	if o.MaxSteps > 0 {
		return o.MaxSteps
	}
	return o.Epochs * source.PerEpoch()
}

// startingPolicy is a new policy on --model, or the trained one of --pretrained-model.
func (t *labelRun) startingPolicy(ctx context.Context) (*policy.Classifier, error) {
	c := t.config
	if start := c.Pretrained(); start != "" {
		return t.load(ctx, start)
	}
	model, err := t.baseModel(ctx)
	if err != nil {
		return nil, err
	}
	pooling := c.NewLabel.Pooling
	if pooling == "auto" {
		pooling = ""
	}
	lora := c.NewLabel.LoRA
	made := policy.Config{
		Dir: model.Dir, BaseModel: model.Name, Revision: model.Commit, Labels: t.data.labels, Pooling: pooling, MaxLength: c.Labels.MaxLength,
		R: lora.R, Alpha: float64(lora.Alpha), Dropout: lora.Dropout, Targets: lora.Targets, Seed: c.General.Seed,
	}
	if c.Policy.Scores() {
		task, ok := c.Settings.(envs.Prompting)
		if !ok {
			return nil, c.Errorf("policy", "task %s has no prompt to score labels behind", c.Task.Name)
		}
		made.Prompt = func(asText bool) envs.Observation { return task.Prompt(t.data.labels, asText) }
	}
	return policy.NewClassifier(made)
}

// load loads a policy, by its folder or name, to go on training it.
func (t *labelRun) load(ctx context.Context, dir string) (*policy.Classifier, error) {
	c := t.config
	p, err := policy.LoadClassifier(ctx, t.hub, dir, true)
	if err != nil {
		return nil, c.Errorf("pretrained_model", "%v", err)
	}
	if !p.Trainable() {
		p.Close()
		return nil, c.Errorf("pretrained_model", "%s holds a merged model without an adapter to train", dir)
	}
	if scores := p.Pooling == policy.PoolScore; c.Source("policy") != (config.Source{}) && scores != c.Policy.Scores() {
		pooling := p.Pooling
		p.Close()
		return nil, c.Errorf("policy", "the policy in %s reads texts another way (%s); leave --policy out", dir, pooling)
	}
	switch {
	case c.Source("model") == (config.Source{}):
		c.General.Model = p.BaseModel
	case dir == c.Pretrained() && c.General.Model != p.BaseModel && !shared.SameFolder(c.General.Model, p.BaseModel):
		base := p.BaseModel
		p.Close()
		return nil, c.Errorf("model", "%s: the policy in %s stands on %s; leave --model out", c.General.Model, dir, base)
	}
	return p, nil
}

// beginning is the policy that the RL stage begins with: that in start, or a new one where there is none.
func (t *labelRun) beginning(ctx context.Context, start string) (*policy.Classifier, error) {
	if start == "" {
		return t.startingPolicy(ctx)
	}
	return t.load(ctx, start)
}

// reinforce trains the RL stage from the policy in start. Its result follows that of start itself, where no
// stage of this run has given it.
func (t *labelRun) reinforce(ctx context.Context, start string) (results []labelResult, err error) {
	c, o := t.config, t.config.LabelRollouts
	p, err := t.beginning(ctx, start)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	rewards, done, err := t.labelRewards(ctx, p.Labels)
	if err != nil {
		return nil, err
	}
	defer done()
	e, err := t.encode(p, t.data.reinforced)
	if err != nil {
		return nil, err
	}
	judge, err := evaluate.Labels(p, e.val, bestMetric(o.Metric, rewards.Names()), o.EvalEvery, rewards)
	if err != nil {
		return nil, err
	}
	if c.Imitation == nil {
		before, err := measure(ctx, p, e.test, "before RL", start)
		if err != nil {
			return nil, err
		}
		results = append(results, before)
	}
	learning, way := c.Learning, c.RL.Algorithm
	if rewards.ReadsProbs() { // which a policy gradient does not see
		if c.LabelReplay != nil {
			return nil, c.Errorf("reward", "%s reads the policy's own probabilities, which change while choices wait in a replay buffer; choose another --algorithm than %s", strings.Join(rewards.Names(), ","), way)
		}
		way = "the exact gradient of the expected reward"
		expected := &algo.Expected{Rewards: rewards}
		expected.Clip = learning.Needs().Clip
		learning = expected
	}
	after, err := t.trained(ctx, rlStage, p, e, "reinforcement learning with "+way, func(stage *run.Stage) error {
		whole := learning.Needs().Ratio == algo.NoRatio && c.LabelReplay == nil
		player, err := rollout.NewLabels(p, textsOf(t.data.reinforced), e.train, rewards, rollout.LabelsConfig{
			LabelOptions: o.LabelOptions, Whole: whole, Steps: o.Episodes, Values: learning.Needs().Values, Epsilon: c.LabelReplay != nil,
			MicroTokens: t.microTokens(labelMicroTokens), Seed: c.General.Seed, Log: stage.Keepf, Algorithm: c.RL.Algorithm,
		})
		if err != nil {
			return err
		}
		source := train.Source(player)
		if c.LabelReplay != nil {
			if source, err = rollout.NewLabelReplay(player, rollout.LabelReplayConfig{
				LabelReplayOptions: *c.LabelReplay, BatchSize: o.BatchSize, Steps: o.Episodes, Seed: c.General.Seed,
			}); err != nil {
				return err
			}
		}
		settings := t.learning(o.Episodes, labelMicroTokens)
		if !whole {
			settings.MinibatchSize = o.BatchSize
		}
		settings.Samples = o.Samples
		settings.Evaluate, settings.Summary = judge, "reward"
		found, err := train.Run(ctx, p, source, learning, settings, stage.Hooks(c.RL.Algorithm, "rollout"))
		if err != nil {
			return err
		}
		if err := stage.Printf("%s training complete. Best return: %.4f (best episode by validation: %d)", strings.ToUpper(c.RL.Algorithm), player.BestReturn(), found.BestStep); err != nil {
			return err
		}
		return save(stage, "rewards.json", player.Scores())
	})
	return append(results, after), err
}

// labelRewards are those of the RL stage.
func (t *labelRun) labelRewards(ctx context.Context, labels []string) (rewards *reward.Labels, done func(), err error) {
	spec, key := t.config.LabelRollouts.RewardSpec()
	models := shared.NewModels(ctx, t.hub)
	if rewards, err = reward.ParseLabels(spec, labels, reward.Options{Critic: models.Critic}); err != nil {
		models.Close()
		return nil, nil, t.config.Errorf(key, "%v", err)
	}
	return rewards, func() { rewards.Close(); models.Close() }, nil
}

// learning is what the trainer is to do in the RL stage, for so many steps.
func (t *trainer) learning(steps, microTokens int) train.Config {
	c := t.config
	settings := train.Config{Steps: steps, Optimisation: c.RL.Optimisation, Stopping: c.RL.Stopping, MicroTokens: t.microTokens(microTokens), OOMRetry: c.General.OOMRetry, Seed: c.General.Seed}
	if c.Updates != nil {
		settings.Updates = *c.Updates
	}
	if c.Regularisation != nil {
		settings.Regularisation = *c.Regularisation
	}
	if c.Values != nil {
		settings.ValueRate = c.Values.LearningRate
	}
	return settings
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

// trained runs a stage and measures what it gives on the test rows; of a stage that an earlier process has finished too.
func (t *labelRun) trained(ctx context.Context, stage string, p *policy.Classifier, e examples, what string, train func(stage *run.Stage) error) (result labelResult, err error) {
	finished, err := t.stage(stage, func(s *run.Stage) error {
		if err := t.begin(s, p, what, p.BaseModel, []report.Split{
			{Name: "train", Rows: e.train.Len()}, {Name: "validation", Rows: e.val.Len()}, {Name: "test", Rows: e.test.Len()},
		}); err != nil {
			return err
		}
		if p.Pooling == policy.PoolScore && !s.Resumed() {
			shown, n, err := p.Shown(t.data.train[0].Text)
			if err == nil {
				err = s.Printf(firstPrompt, n, shown)
			}
			if err != nil {
				return err
			}
		}
		if cut := e.train.Cut + e.val.Cut + e.test.Cut; cut > 0 && !s.Resumed() {
			if err := s.Printf("%d of %d texts were cut at %d tokens", cut, e.train.Len()+e.val.Len()+e.test.Len(), p.MaxLength); err != nil {
				return err
			}
		}
		if err := train(s); err != nil {
			return err
		}
		result, err = t.write(ctx, s, p, e, stage)
		return err
	})
	if err != nil || !finished {
		return result, err
	}
	dir := t.stageDir(stage)
	// To be trained, so that it gives the same bits as in the process that has trained it.
	earlier, err := policy.LoadClassifier(ctx, t.hub, dir, true)
	if err != nil {
		return result, err
	}
	defer earlier.Close()
	return measure(ctx, earlier, e.test, stage, dir)
}

// labelResult is a finished stage on the test rows.
type labelResult struct {
	name       string
	dir        string
	evaluation rl.Evaluation
	truth      []int
	probs      [][]float32
}

// measure runs the policy on the test rows.
func measure(ctx context.Context, p *policy.Classifier, test policy.Examples, name, dir string) (labelResult, error) {
	probs, err := p.Probs(ctx, test.IDs)
	if err != nil {
		return labelResult{}, err
	}
	return labelResult{name: name, dir: dir, truth: test.Labels, probs: probs, evaluation: rl.Evaluate(p.Labels, test.Labels, probs)}, nil
}
