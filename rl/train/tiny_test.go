package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/serve/servetest"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/rollout/rollouttest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// recorded is the output of a run.
type recorded struct {
	rows  []report.Row
	lines []string
}

func (r *recorded) hooks() run.Hooks {
	return run.Hooks{
		Row: func(row report.Row) error { r.rows = append(r.rows, row); return nil },
		Log: func(format string, args ...any) error {
			r.lines = append(r.lines, fmt.Sprintf(format, args...))
			return nil
		},
	}
}

// steps are the rows of steps, without evaluations.
func (r *recorded) steps() []report.Row {
	var rows []report.Row
	for _, row := range r.rows {
		if _, ok := row["learning_rate"]; ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// figure is one metric of every step.
func (r *recorded) figure(name string) []float64 {
	var values []float64
	for _, row := range r.steps() {
		value, _ := row[name].(float64)
		values = append(values, value)
	}
	return values
}

// encoded is the rows as in a file.
func encoded(t *testing.T, rows []report.Row) []string {
	t.Helper()
	lines := make([]string, len(rows))
	for i, row := range rows {
		line := must.Get(json.Marshal(row))(t)
		lines[i] = string(line)
	}
	return lines
}

var labelNames = []string{"a", "b", "c"}

// tinyLabel is a random encoder of 2 layers and 16 features, with adapters on all linear layers.
func tinyLabel(t testing.TB) *policy.Classifier {
	t.Helper()
	torchtest.NoLeaks(t)
	return must.Open(policy.RandomClassifier(&transformers.Config{
		ModelType: "bert", VocabSize: 50, HiddenSize: 16, NumHiddenLayers: 2, NumAttentionHeads: 2,
		IntermediateSize: 32, HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 32, TypeVocabSize: 1,
	}, policy.Config{Labels: labelNames, Pooling: transformers.PoolMean, R: 4, Alpha: 8, Dropout: 0.1, Seed: 1, BaseModel: "random"}))(t)
}

// tinyLanguageLabel is a classifier on a language model, with a head on the last token; if scored, it scores the
// labels' text instead.
func tinyLanguageLabel(t testing.TB, scored bool) *policy.Classifier {
	t.Helper()
	torchtest.NoLeaks(t)
	c := policy.Config{Dir: t.TempDir() + "/tiny", Labels: labelNames, R: 4, Alpha: 8, Dropout: 0.1, Seed: 5}
	must.Do(t, policy.TinyModel(c.Dir, 2, 32, 3))
	if scored {
		c.Prompt = func(bool) envs.Observation { return envs.Observation{Text: policy.TextMark + ":"} }
	}
	return must.Open(policy.NewClassifier(c))(t)
}

// tinyExamples are sequences of 3 to 12 noise tokens around two tokens that determine the label.
func tinyExamples(n int, seed uint64) policy.Examples {
	rng := rand.New(rand.NewPCG(seed, 0))
	var e policy.Examples
	for range n {
		label := rng.IntN(len(labelNames))
		ids := make([]int32, 3+rng.IntN(10))
		for i := range ids {
			ids[i] = int32(10 + rng.IntN(40))
		}
		ids[rng.IntN(len(ids))] = int32(1 + label)
		ids[rng.IntN(len(ids))] = int32(4 + label)
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, label)
	}
	return e
}

func labelRewards(t testing.TB, list string) *reward.Labels {
	t.Helper()
	return must.Get(reward.ParseLabels(list, labelNames, reward.Options{}))(t)
}

// labelRun is a small run on a classifier's choices.
type labelRun struct {
	algorithm algo.Algorithm // nil = Expected, or PPO if the rewards do not read probabilities
	rewards   string
	rollout.LabelOptions
	train, validation policy.Examples
	metric            string
	replay            int // capacity of the replay buffer; 0 = no replay
	Config
}

func newLabelRun(rewards string) labelRun {
	return labelRun{
		rewards: rewards, LabelOptions: rollout.LabelOptions{BufferSize: 256, BatchSize: 32}, metric: evaluate.MetricAccuracy,
		train: tinyExamples(256, 1), validation: tinyExamples(128, 2),
		Config: Config{
			Steps: 6, Optimisation: Optimisation{LearningRate: 2e-2, Schedule: "linear", MaxGradNorm: 1}, ValueRate: 2e-2, HeadRate: 2e-2,
			Updates: Updates{Epochs: 3}, MinibatchSize: 32, Regularisation: Regularisation{EntropyCoef: 0.01}, Seed: 3,
		},
	}
}

func (r labelRun) on(ctx context.Context, t testing.TB, p *policy.Classifier, h run.Hooks) (Result, error) {
	t.Helper()
	rewards := labelRewards(t, r.rewards)
	defer rewards.Close()
	a := r.algorithm
	if a == nil {
		a = &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Gamma: 0.99, Lambda: 0.95, ValueClip: 0.2, ValueCoef: 0.5, Whiten: true}
		if rewards.ReadsProbs() {
			a = &algo.Expected{Rewards: rewards, Clip: algo.Clip{Low: 0.2, High: 0.2}}
		}
	}
	player, err := rollout.NewLabels(p, nil, r.train, rewards, rollout.LabelsConfig{
		Algorithm: "ppo", LabelOptions: r.LabelOptions, Steps: r.Steps, Values: a.Needs().Values, Epsilon: r.replay > 0, MicroTokens: memoryOf(ctx).micro, Seed: r.Seed, Log: h.Logf,
	})
	must.Do(t, err)
	var source Source = player
	if r.replay > 0 {
		if source, err = rollout.NewLabelReplay(player, rollout.LabelReplayConfig{
			LabelReplayOptions: rollout.LabelReplayOptions{Capacity: r.replay, Updates: 3, EpsilonStart: 1, EpsilonEnd: 0.1, EpsilonDecay: 0.5},
			BatchSize:          r.BatchSize, Steps: r.Steps, Seed: r.Seed,
		}); err != nil {
			t.Fatal(err)
		}
	}
	r.Config.Samples = r.LabelOptions.Samples
	r.Evaluate = must.Get(evaluate.Labels(p, r.validation, r.metric, 1, rewards))(t)
	return launch(ctx, p, source, a, r.Config, h)
}

// tinyToken is a policy on a model of 2 layers; it trains all weights, or an adapter if r > 0.
func tinyToken(t testing.TB, r int) *policy.CausalLM {
	t.Helper()
	return tinyTokenOf(t, policy.Config{Full: r == 0, R: r})
}

func tinyTokenOf(t testing.TB, c policy.Config) *policy.CausalLM {
	t.Helper()
	torchtest.NoLeaks(t)
	c.Dir, c.Alpha, c.Dropout, c.Seed = t.TempDir()+"/tiny", 2*float64(c.R), 0.1, 5
	hidden := map[string]int{"": 32, "nf4": 64}[c.DType]
	must.Do(t, policy.TinyModel(c.Dir, 2, hidden, 3))
	return must.Open(policy.NewCausalLM(c))(t)
}

// quantizedToken is wider, with 4-bit base weights.
func quantizedToken(t testing.TB, r int) *policy.CausalLM {
	t.Helper()
	return tinyTokenOf(t, policy.Config{R: r, DType: "nf4"})
}

// savedToken is one that trains its output layer and embedding, which the model ties, beside the adapter.
func savedToken(t testing.TB, r int) *policy.CausalLM {
	t.Helper()
	return tinyTokenOf(t, policy.Config{R: r, ModulesToSave: []string{"lm_head", "embed_tokens"}})
}

// trainedToken is one with an adapter trained in an earlier stage.
func trainedToken(t testing.TB, r int) *policy.CausalLM {
	t.Helper()
	p := tinyToken(t, r)
	rng := rand.New(rand.NewPCG(7, 0))
	for i, v := range p.Params() {
		values := must.Get(v.Read())(t)
		for j := range values {
			if i%2 == 1 { // a B, which is 0 in a new adapter
				values[j] = float32(0.1 * rng.NormFloat64())
			}
		}
		must.Do(t, v.Write(values))
	}
	p.Changed()
	return p
}

var letters, spelling = rollouttest.Spelling(7, 1), rollouttest.Spelling(5, 3)

// worked is letters with solutions.
type worked struct{ rollouttest.Endless }

func (worked) Episode(part envs.Part, index int) (envs.Env, error) {
	return workedEpisode{letters(part, index).(*rollouttest.Word)}, nil
}

type workedEpisode struct{ *rollouttest.Word }

func (e workedEpisode) Solution() string { return e.Shown[len(e.Shown)-2:] + "abc" }

// few has 20 training episodes.
type few struct{ rollouttest.Endless }

func (few) Len(part envs.Part) int {
	if part == envs.Train {
		return 20
	}
	return 0
}

// tokenRun is a small run on a language model's rollouts.
type tokenRun struct {
	algorithm func() algo.Algorithm // new for each run: algorithms have state
	task      envs.Task
	rollout.Options
	maxNew    int
	greedy    bool
	rewards   string // may include model:smalls; "" = the task's reward
	evaluated int    // episodes of an evaluation
	every     int    // steps between evaluations
	Config

	taught   bool   // by another tiny model with the same tokens, on a server if the algorithm asks one
	servers  int    // rollout servers; 0 = the policy's sampler
	recorded string // file of sessions that take the place of rollouts
	quirk    func(i int, s *servetest.Front)
	told     func(line string)
	group    *dist.Group
}

func newTokenRun(algorithm func() algo.Algorithm) tokenRun {
	return tokenRun{
		algorithm: algorithm, task: letters, maxNew: 3,
		Options: rollout.Options{PromptsPerStep: 4, SamplesPerPrompt: 8, NumGenerators: 2, Sampling: rollout.Sampling{Temperature: 1}, MaxStaleness: 1},
		Config: Config{
			Steps: 25, Optimisation: Optimisation{LearningRate: 0.02, Schedule: "constant", MaxGradNorm: 1}, ValueRate: 0.02,
			Memory: Memory{MicroTokens: 200}, Longest: 3, Seed: 1,
		},
	}
}

// source returns the run's source of rollouts; the test closes it.
func (r tokenRun) source(t testing.TB, p *policy.CausalLM) (*rollout.Tokens, writer) {
	t.Helper()
	var sampler writer
	var err error
	if r.servers > 0 {
		sampler, err = r.serve(t, p)
	} else {
		sampler, err = p.NewSampler(r.NumGenerators * r.SamplesPerPrompt)
	}
	must.Do(t, err)
	var rewards *reward.Text
	if r.rewards != "" {
		rewards = must.Get(reward.ParseText(r.rewards, nil, reward.Options{Critic: func(string) (envs.Critic, error) { return smalls{}, nil }}))(t)
	}
	c := rollout.TokensConfig{Options: r.Options, Steps: r.Steps, MaxNew: r.maxNew, Greedy: r.greedy, Context: r.algorithm().Needs().Context, Rewards: rewards, Seed: r.Seed, Group: r.group}
	if r.taught && r.algorithm().Needs().Server.URL != "" {
		c.Teacher = r.servedTeacher(t, p)
	}
	if r.recorded != "" {
		return must.Get(rollout.NewRecorded(sampler, r.task, c, r.recorded))(t), sampler
	}
	return must.Get(rollout.NewTokens(sampler, r.task, c))(t), sampler
}

func (r tokenRun) on(ctx context.Context, t testing.TB, p *policy.CausalLM, h run.Hooks) (Result, error) {
	t.Helper()
	r.group = h.Group
	source, sampler := r.source(t, p)
	defer sampler.Close()
	r.Samples, r.Temperature = r.SamplesPerPrompt, r.Options.Temperature
	if r.taught && r.algorithm().Needs().Server.URL == "" {
		r.Teacher = trainedToken(t, 4)
	}
	if r.Evaluate == nil {
		r.Evaluate = evaluate.Answers(sampler, r.task, r.evaluated, r.every, rollout.Config{MaxNew: r.maxNew, Seed: r.Seed}.Greedy())
	}
	return launch(ctx, p, source, r.algorithm(), r.Config, h)
}

// smalls is a reward model that counts small letters, on an arbitrary scale.
type smalls struct{}

func (smalls) Score(_ context.Context, completions []envs.Completion) ([]float64, []error) {
	scores := make([]float64, len(completions))
	for i, c := range completions {
		scores[i] = 5
		for _, letter := range c.Text {
			if rollouttest.Small(string(letter)) {
				scores[i] += 0.5
			}
		}
	}
	return scores, make([]error, len(completions))
}

func (c smalls) Steps(ctx context.Context, completions []envs.Completion, ends [][]int, _ string) ([][]float64, []error) {
	all := make([][]float64, len(completions))
	for i, x := range completions {
		for _, end := range ends[i] {
			scores, _ := c.Score(ctx, []envs.Completion{{Text: strings.TrimSpace(x.Generated[:end])}})
			all[i] = append(all[i], scores[0])
		}
	}
	return all, make([]error, len(completions))
}

// replayRun is a small run on turns from a replay buffer.
type replayRun struct {
	algorithm algo.Algorithm
	rollout.ReplayOptions
	load, save string
	maxNew     int
	slots      int
	evaluated  int
	every      int
	Config
}

func newReplayRun(a algo.Algorithm) replayRun {
	return replayRun{
		algorithm: a, maxNew: 2, slots: 4,
		ReplayOptions: rollout.ReplayOptions{PromptsPerStep: 8, NumUpdateSteps: 32, BufferSize: 48, Temperature: 1, Gamma: 0.5},
		Config: Config{
			Steps: 20, Optimisation: Optimisation{LearningRate: 0.01, Schedule: "linear", MaxGradNorm: 1}, MinibatchSize: 8,
			Memory: Memory{MicroTokens: 100}, Seed: 1,
		},
	}
}

func (r replayRun) on(ctx context.Context, t testing.TB, p *policy.CausalLM, h run.Hooks) (Result, error) {
	t.Helper()
	sampler := must.Get(p.NewSampler(r.slots))(t)
	defer sampler.Close()
	source, err := rollout.NewReplay(sampler, spelling, rollout.ReplayConfig{
		ReplayOptions: r.ReplayOptions, MaxNew: r.maxNew, Seed: r.Seed, Load: r.load, Save: r.save, Group: h.Group,
	})
	if err != nil {
		return Result{}, err
	}
	r.Config.Temperature = r.ReplayOptions.Temperature
	if r.Evaluate == nil {
		r.Evaluate = evaluate.Answers(sampler, spelling, r.evaluated, r.every, rollout.Config{MaxNew: r.maxNew, Seed: r.Seed}.Greedy())
	}
	return launch(ctx, p, source, r.algorithm, r.Config, h)
}

func newReinforce() algo.Algorithm { return &algo.Reinforce{Decay: 0.9} }
func newRLOO() algo.Algorithm      { return &algo.RLOO{Clip: algo.Clip{Low: 0.2, High: 0.2}} }
func newProcess() algo.Algorithm {
	return &algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Process: true}
}
func newGRPO() algo.Algorithm { return &algo.GRPO{Clip: algo.Clip{Low: 0.2, High: 0.2}} }
func newPPO() algo.Algorithm {
	return &algo.PPO{Clip: algo.Clip{Low: 0.2, High: 0.2}, Gamma: 1, Lambda: 0.95, ValueClip: 0.2, ValueCoef: 0.5, Whiten: true}
}
