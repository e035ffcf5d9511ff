package train_test

import (
	"testing"

	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// TestEpisodesOfLabelsReachTheOptimum trains routers on episodes of three classifications, until
// their likeliest choices earn on average, over all that may come, exactly what dynamic programming does.
func TestEpisodesOfLabelsReachTheOptimum(t *testing.T) {
	play := func(t *testing.T, p *router, c rollout.LabelEpisodesConfig) *rollout.LabelEpisodes {
		c.Episodes = 32
		source, err := rollout.NewLabelEpisodes(p, routes, encodeState, routing{}, c)
		if err != nil {
			t.Fatal(err)
		}
		return source
	}
	settings := train.Config{Seed: 1, Optimisation: train.Optimisation{LearningRate: 0.1, Schedule: "linear", MaxGradNorm: 1}, ValueRate: 0.1}
	actorCritic := func(a algo.Algorithm, change func(c *train.Config)) func(t *testing.T, p *router) (train.Source, algo.Algorithm, train.Config) {
		return func(t *testing.T, p *router) (train.Source, algo.Algorithm, train.Config) {
			c := settings
			change(&c)
			return play(t, p, rollout.LabelEpisodesConfig{Values: true, Seed: 1}), a, c
		}
	}
	q := func(double bool, steps int) func(t *testing.T, p *router) (train.Source, algo.Algorithm, train.Config) {
		return func(t *testing.T, p *router) (train.Source, algo.Algorithm, train.Config) {
			c := settings
			c.MinibatchSize, c.Steps = 64, 60
			source, err := rollout.NewLabelReplay(play(t, p, rollout.LabelEpisodesConfig{Epsilon: true, Seed: 1}), rollout.LabelReplayConfig{
				LabelReplayOptions: rollout.LabelReplayOptions{Capacity: 4000, Updates: 4, EpsilonStart: 1, EpsilonEnd: 0.1, EpsilonDecay: 0.5, Gamma: 1, NSteps: steps},
				BatchSize:          64, Steps: c.Steps, Seed: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			return source, &algo.DQN{Double: double, Temperature: 0.1, TargetEvery: 5}, c
		}
	}
	clip := algo.Clip{Low: 0.2, High: 0.2}
	for name, way := range map[string]func(t *testing.T, p *router) (train.Source, algo.Algorithm, train.Config){
		"a2c": actorCritic(&algo.A2C{Gamma: 1, Lambda: 0.95, ValueCoef: 0.5, Whiten: true}, func(c *train.Config) { c.EntropyCoef, c.Steps = 0.02, 100 }),
		"ppo": actorCritic(&algo.PPO{Clip: clip, Gamma: 1, Lambda: 0.95, ValueCoef: 0.5, Whiten: true}, func(c *train.Config) {
			c.Epochs, c.MinibatchSize, c.EntropyCoef, c.Steps = 3, 48, 0.02, 40
		}),
		"dqn": q(false, 1), "double dqn": q(true, 1), "dqn of two steps": q(false, 2),
	} {
		t.Run(name, func(t *testing.T) {
			p := newRouter()
			defer p.Close()
			source, a, c := way(t, p)
			if _, err := train.Run(t.Context(), p, source, a, c, run.Hooks{}); err != nil {
				t.Fatal(err)
			}
			if got, want := value(greedy(p), requests, false), value(best, requests, false); got < want-1e-9 {
				t.Errorf("%.3f an episode, at best %.3f", got, want)
			}
		})
	}
}
