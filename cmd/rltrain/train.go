package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs/dataset"
	"rltrain/envs/intent"
	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch"
	"rltrain/torch/hub"
)

// trainer carries what the stages of one run share.
type trainer struct {
	config  *config.Config
	command []string
	console *report.Console
	hub     *hub.Client
	data    data
}

// data is the labelled text of a run in its three parts.
type data struct {
	name             string
	labels           []string
	train, val, test []dataset.Row
	imitated         []dataset.Row // of train, by the supervised stage
	reinforced       []dataset.Row // of train, by the RL stage
}

// stages of an intent classifier, as the names of their folders end.
const (
	supervisedStage = "supervised"
	rlStage         = "rl"
)

// train runs the stages of c.Mode.
func train(ctx context.Context, c *config.Config) error {
	t := &trainer{config: c, command: os.Args, console: report.NewConsole(os.Stdout, os.Stderr, time.Now)}
	client, done := newHub(t.console)
	defer done()
	t.hub = client
	torch.Start(c.Threads)
	for _, section := range c.Skipped() {
		if err := t.console.Print("note: left unread in " + c.ConfigFile + ": " + section); err != nil {
			return err
		}
	}
	run := t.exerciseStages
	switch c.Task {
	case config.Chat:
		run = t.chatStage
	case config.GSM8K, config.MATH:
		run = t.problemStages
	case config.Intent:
		run = t.run
		if err := t.loadData(ctx); err != nil {
			return err
		}
	}
	// Nothing is written before it is certain that there is something to compute with.
	if err := torch.Open(c.Threads); err != nil {
		return err
	}
	thread := torch.NewThread()
	defer thread.Close()
	err := thread.Do(ctx, run)
	if errors.Is(err, context.Canceled) {
		return algo.ErrStopped // outside of a stage nothing is lost either
	}
	return err
}

func (t *trainer) run(ctx context.Context) error {
	c := t.config
	var results []stageResult
	start := c.PretrainedModel
	if c.Mode != config.RLOnly {
		result, err := t.supervised(ctx)
		if err != nil {
			return err
		}
		results, start = append(results, result), result.dir
	}
	if c.Mode != config.Supervised {
		more, err := t.reinforce(ctx, start)
		if err != nil {
			return err
		}
		results = append(results, more...)
	}
	return t.compare(results)
}

// loadData reads the rows, divides them and fixes the labels.
func (t *trainer) loadData(ctx context.Context) error {
	c := t.config
	var rows []dataset.Row
	if c.Dataset == "" {
		t.data.name, rows = "built-in questions", intent.Builtin()
	} else {
		columns := dataset.Columns{Text: c.TextColumn, Label: c.LabelColumn}
		if c.Source("split_column") != (config.Source{}) {
			columns.Split = c.SplitColumn
		}
		parts, err := algo.FindDataset(ctx, t.hub, c.Dataset, c.DatasetConfig, classifierParts...)
		if err != nil {
			return c.Errorf("dataset", "%v", err)
		}
		if rows, err = dataset.ReadParts(parts, columns); err != nil {
			return err
		}
		t.data.name = c.Dataset
	}
	labels, err := dataset.Labels(rows)
	if err != nil {
		return err
	}
	if c.MaxSamples > 0 {
		if c.MaxSamples < len(labels) {
			return c.Errorf("max_samples", "%d rows cannot be shared out among %d labels", c.MaxSamples, len(labels))
		}
		rows = dataset.Balance(rows, c.MaxSamples)
	}
	t.data.labels = labels
	t.data.train, t.data.val, t.data.test = dataset.Split(rows, c.Seed)
	t.data.imitated, t.data.reinforced = t.data.train, t.data.train
	if c.Mode == config.SupervisedThenRL {
		if rest, apart := dataset.SetApart(t.data.train, apartForRL); len(apart) > 0 { // else the rows are too few to share
			t.data.imitated, t.data.reinforced = rest, apart
		}
	}
	for _, part := range []struct {
		name string
		rows []dataset.Row
	}{{"training", t.data.train}, {"validation", t.data.val}, {"test", t.data.test}} {
		if len(part.rows) == 0 {
			return fmt.Errorf("%s: no rows are left for %s; it needs more rows, or a split column that has all three parts", t.data.name, part.name)
		}
	}
	return nil
}

// apartForRL: where both stages are trained, one training row in this many is for RL alone. A policy is nearly certain of
// the rows that it has imitated: there is little left to be paid for, and they do not tell how sure it should be of others.
const apartForRL = 4

// classifierParts are the parts of a data set that a classifier is trained or measured on.
var classifierParts = []string{"train", "validation", "test"}

// stageResult is a finished stage on the test rows.
type stageResult struct {
	name       string
	dir        string
	evaluation rl.Evaluation
	truth      []int
	probs      [][]float32
}

func (t *trainer) stageDir(stage string) string {
	task := t.config.Task
	if task == config.Intent {
		task = "intent_classifier"
	}
	return filepath.Join(t.config.OutputDir, task+"_"+stage)
}

// openStage opens the run folder of a stage; nil where a finished one is to be resumed.
func (t *trainer) openStage(stage string) (*algo.Stage, error) {
	c := t.config
	dir := t.stageDir(stage)
	if c.Resume {
		if err := t.sameConfig(dir); err != nil {
			return nil, err
		}
	}
	s, err := algo.OpenStage(algo.StageConfig{
		Dir: dir, Resume: c.Resume, SaveEvery: c.SaveSteps, Keep: c.SaveTotalLimit, LogEvery: c.LoggingSteps,
		Console: t.console, Now: time.Now,
		Info: rl.Info{Task: c.Task, Stage: stage, Command: t.command, Versions: versions(), Device: "cpu",
			Threads: torch.Threads(), CPU: cpuModel(), Seed: c.Seed, Started: time.Now(), Environment: wandbVariables(os.Environ())},
	})
	if errors.Is(err, algo.ErrFinished) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := rl.WriteFileAtomic(filepath.Join(dir, "config.yaml"), []byte(c.YAML()), 0o644); err != nil {
		return nil, s.Settle(err)
	}
	return s, nil
}

// trainStage runs a stage of a language model, unless an earlier process has finished it.
func (t *trainer) trainStage(name string, train func(stage *algo.Stage) error) error {
	stage, err := t.openStage(name)
	if err != nil {
		return err
	}
	if stage == nil {
		called := map[string]string{supervisedStage: "supervised", rlStage: "RL"}[name]
		return t.console.Print("The " + called + " stage in " + t.stageDir(name) + " is finished; it is used as it is")
	}
	return stage.Finish(func() error { return train(stage) })
}

// sameConfig refuses to resume a run under other settings than it began with.
func (t *trainer) sameConfig(dir string) error {
	path := filepath.Join(dir, "config.yaml")
	if _, err := os.Stat(path); err != nil {
		return nil // nothing to resume yet
	}
	old, err := config.Load([]string{"--config", path}, nil)
	if err != nil {
		return fmt.Errorf("resuming %s: %w", dir, err)
	}
	for _, d := range config.Diff(old, t.config) {
		return t.config.Errorf(d.Key, "the run in %s began with %v, this command says %v; resume it as it began, or start anew without --resume", dir, d.A, d.B)
	}
	return nil
}

func (t *trainer) supervised(ctx context.Context) (stageResult, error) {
	c := t.config
	// Everything that can be wrong with what the user gave is found before the output folder is touched.
	policy, err := t.startingPolicy(ctx)
	if err != nil {
		return stageResult{}, err
	}
	defer policy.Close()
	parts, err := t.encode(policy, t.data.imitated)
	if err != nil {
		return stageResult{}, err
	}
	stage, err := t.openStage(supervisedStage)
	if err != nil {
		return stageResult{}, err
	}
	if stage == nil {
		return t.finished(ctx, supervisedStage, parts)
	}
	if err := t.begin(stage, policy, parts, "supervised fine-tuning with LoRA"); err != nil {
		return stageResult{}, stage.Settle(err)
	}
	result, err := algo.SFT(ctx, policy, parts.train, parts.val, algo.SFTConfig{
		Epochs: c.Epochs, MaxUpdates: c.MaxSteps, BatchSize: c.BatchSize, LearningRate: c.LearningRate, HeadLearningRate: c.HeadLearningRate,
		WeightDecay: c.WeightDecay, Schedule: c.LRSchedulerType, Warmup: c.WarmupRatio, MaxGradNorm: c.MaxGradNorm,
		FeatureAlignment: c.FeatureAlignment, Metric: c.MetricForBestModel, MicroTokens: microTokens(c), Seed: c.Seed,
	}, stage.Hooks("supervised", "update"))
	if err != nil {
		return stageResult{}, stage.Settle(err)
	}
	if err := stage.Printf("Supervised training complete after %d updates. Best epoch: %d (%s)", result.Updates, result.BestEpoch, c.MetricForBestModel); err != nil {
		return stageResult{}, stage.Settle(err)
	}
	return t.end(ctx, stage, policy, parts, supervisedStage)
}

// startingPolicy is a new policy on c.Model, or the trained one of c.PretrainedModel.
func (t *trainer) startingPolicy(ctx context.Context) (*algo.LabelPolicy, error) {
	c := t.config
	if c.PretrainedModel != "" {
		return t.trained(ctx, c.PretrainedModel)
	}
	model, err := t.baseModel(ctx)
	if err != nil {
		return nil, err
	}
	return algo.NewLabelPolicy(algo.PolicyConfig{
		Dir: model.Dir, BaseModel: model.Name, Revision: model.Commit, Labels: t.data.labels, Pooling: poolingOf(c.Pooling), MaxLength: c.MaxLength,
		R: c.LoraR, Alpha: float64(c.LoraAlpha), Dropout: c.LoraDropout, Targets: c.LoraTargetModules, Seed: c.Seed,
	})
}

// baseModel finds the model of --model.
func (t *trainer) baseModel(ctx context.Context) (hub.Model, error) {
	model, err := t.hub.Model(ctx, t.config.Model, hub.Weights)
	if err == nil {
		err = model.CheckBase()
	}
	if err != nil {
		return hub.Model{}, t.config.Errorf("model", "%v", err)
	}
	return model, nil
}

// trained loads a policy, by its folder or name, to go on training it.
func (t *trainer) trained(ctx context.Context, dir string) (*algo.LabelPolicy, error) {
	c := t.config
	policy, err := algo.LoadLabelPolicy(ctx, t.hub, dir)
	if err != nil {
		return nil, c.Errorf("pretrained_model", "%v", err)
	}
	if !policy.Trainable() {
		policy.Close()
		return nil, c.Errorf("pretrained_model", "%s holds a merged model without an adapter to train", dir)
	}
	switch {
	case c.Source("model") == (config.Source{}):
		c.Model = policy.BaseModel
	case dir == c.PretrainedModel && c.Model != policy.BaseModel && !sameFolder(c.Model, policy.BaseModel):
		base := policy.BaseModel
		policy.Close()
		return nil, c.Errorf("model", "%s: the policy in %s stands on %s; leave --model out", c.Model, dir, base)
	}
	return policy, nil
}

// reinforce trains the RL stage from the policy in start. Its result follows that of start itself, where no
// stage of this run has given it.
func (t *trainer) reinforce(ctx context.Context, start string) (results []stageResult, err error) {
	c := t.config
	policy, err := t.trained(ctx, start)
	if err != nil {
		return nil, err
	}
	defer policy.Close()
	spec, key := c.RewardSpec()
	rewards, err := intent.ParseRewards(spec, policy.Labels)
	if err != nil {
		return nil, c.Errorf(key, "%v", err)
	}
	parts, err := t.encode(policy, t.data.reinforced)
	if err != nil {
		return nil, err
	}
	if c.Mode == config.RLOnly {
		before, err := measure(ctx, policy, parts.test, "before RL", start)
		if err != nil {
			return nil, err
		}
		results = append(results, before)
	}
	stage, err := t.openStage(rlStage)
	if err != nil {
		return nil, err
	}
	if stage == nil {
		after, err := t.finished(ctx, rlStage, parts)
		return append(results, after), err
	}
	if err := t.begin(stage, policy, parts, "reinforcement learning with PPO"); err != nil {
		return nil, stage.Settle(err)
	}
	if _, err := algo.PPO(ctx, policy, parts.train, parts.val, rewards, algo.PPOConfig{
		Episodes: c.RLEpisodes, RolloutSize: c.BufferSize, BatchSize: c.RLBatchSize, UpdateEpochs: c.UpdateEpochs,
		LearningRate: c.RLLearningRate, ValueRate: c.ValueLearningRate, Gamma: c.Gamma, Lambda: c.GAELambda, ClipLow: c.ClipLow, ClipHigh: c.ClipHigh,
		ValueClip: c.ValueClip, ValueCoef: c.ValueCoef, EntropyCoef: c.EntropyCoef, TargetKL: c.TargetKL,
		Whiten: c.WhitenAdvantages, MaxGradNorm: c.RLMaxGradNorm, Metric: bestMetric(c, rewards),
		MicroTokens: microTokens(c), Seed: c.Seed,
	}, stage.Hooks("ppo", "update")); err != nil {
		return nil, stage.Settle(err)
	}
	if path, err := stage.File("logs", "rewards.json"); err != nil {
		return nil, stage.Settle(err)
	} else if err := rl.SaveJSON(path, rewards.Stats()); err != nil {
		return nil, stage.Settle(err)
	}
	after, err := t.end(ctx, stage, policy, parts, rlStage)
	return append(results, after), err
}

// parts are the rows as a policy sees them.
type parts struct{ train, val, test algo.Examples }

func (t *trainer) encode(policy *algo.LabelPolicy, train []dataset.Row) (p parts, err error) {
	for _, part := range []struct {
		into *algo.Examples
		rows []dataset.Row
	}{{&p.train, train}, {&p.val, t.data.val}, {&p.test, t.data.test}} {
		if *part.into, err = policy.Encode(part.rows); err != nil {
			return p, err
		}
	}
	return p, nil
}

// begin prints what is about to happen.
func (t *trainer) begin(stage *algo.Stage, policy *algo.LabelPolicy, p parts, what string) error {
	if stage.Resumed() {
		return nil
	}
	total, trainable := policy.Parameters()
	header := report.Header{
		Task: t.config.Task, Stage: what, Model: policy.BaseModel, Total: total, Trainable: trainable, Device: "cpu",
		Threads: torch.Threads(), Data: t.data.name, Output: stage.Dir(),
		Splits: []report.Split{{Name: "train", Rows: p.train.Len()}, {Name: "validation", Rows: p.val.Len()}, {Name: "test", Rows: p.test.Len()}},
	}
	if err := stage.Printf("%s", header.String()); err != nil {
		return err
	}
	if cut := p.train.Cut + p.val.Cut + p.test.Cut; cut > 0 {
		return stage.Printf("%d of %d texts were cut at %d tokens", cut, p.train.Len()+p.val.Len()+p.test.Len(), policy.MaxLength)
	}
	return nil
}

// microBatchTokens keeps a step's activations under a few gigabytes at the sizes of common encoders.
const microBatchTokens = 16384

func microTokens(c *config.Config) int {
	if c.TokensPerMicroBatch > 0 {
		return c.TokensPerMicroBatch
	}
	return microBatchTokens
}

func poolingOf(name string) string {
	if name == "auto" {
		return ""
	}
	return name
}

// bestMetric is the validation figure that a reward is about.
func bestMetric(c *config.Config, rewards *intent.Rewards) string {
	if c.RLMetricForBest != "auto" {
		return c.RLMetricForBest
	}
	if stats := rewards.Stats(); len(stats) == 1 {
		switch stats[0].Name {
		case "accuracy":
			return algo.MetricAccuracy
		case "f1":
			return algo.MetricF1Macro
		case "calibration":
			return algo.MetricBrier
		}
	}
	return algo.MetricReward
}

func versions() map[string]string {
	return map[string]string{"rltrain": version, "go": runtime.Version(), "libtorch": torch.LibtorchVersion}
}

// wandbVariables are the settings of Weights & Biases that a run was started with, without what is secret.
func wandbVariables(environ []string) map[string]string {
	var kept map[string]string
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, "WANDB_") || name == "WANDB_API_KEY" {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[name] = value
	}
	return kept
}

// cpuModel is the processor's name and the vector extension in use.
func cpuModel() string {
	name := "unknown processor"
	if data, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				name = strings.TrimSpace(value)
				break
			}
		}
	}
	capability, err := torch.CPUCapability()
	if err != nil {
		return name
	}
	return name + ", " + capability
}

// compare prints the stages side by side on the test rows.
func (t *trainer) compare(results []stageResult) error {
	percent := func(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) }
	rows := [][]string{}
	for _, r := range results {
		e := r.evaluation
		rows = append(rows, []string{r.name, strconv.Itoa(e.N),
			fmt.Sprintf("%s  [%s, %s]", percent(e.Accuracy), percent(e.Intervals.Accuracy[0]), percent(e.Intervals.Accuracy[1])),
			percent(e.F1Macro), percent(e.F1Weighted), fmt.Sprintf("%.4f", e.ECE), fmt.Sprintf("%.4f", e.Brier)})
	}
	if err := t.console.Print("\nHeld-out test rows:\n" + report.RenderTable([]string{"stage", "n", "accuracy % [95 %]", "F1 macro %", "F1 weighted %", "ECE", "Brier"}, rows)); err != nil {
		return err
	}
	if len(results) == 2 {
		c := rl.Compare(len(t.data.labels), results[0].truth, results[0].probs, results[1].probs)
		if err := t.console.Print(fmt.Sprintf("Difference made by RL, with 95 %% paired intervals: accuracy %+.1f points [%+.1f, %+.1f], Brier %+.4f [%+.4f, %+.4f]\n",
			100*c.Accuracy.Difference, 100*c.Accuracy.Interval[0], 100*c.Accuracy.Interval[1], c.Brier.Difference, c.Brier.Interval[0], c.Brier.Interval[1])); err != nil {
			return err
		}
	}
	last := results[len(results)-1].dir
	return t.console.Print("Saved in " + last + ". Try: echo 'Why does ice float on water?' | rltrain predict --model " + last)
}
