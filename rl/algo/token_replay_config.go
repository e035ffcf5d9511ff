package algo

import (
	"errors"
	"fmt"
	"strings"

	"rltrain/torch"
)

// Losses of TokenReplay.
const (
	ReplayReinforce = "reinforce" // reinforceLoss of returns
	ReplayStable    = "stable"    // stableLoss
	ReplayDistiller = "distiller" // distillerLoss
)

// TokenReplayConfig is what TokenReplay needs to know.
type TokenReplayConfig struct {
	Loss        string // ReplayReinforce, ReplayStable or ReplayDistiller
	Steps       int
	Episodes    int // played in a step, once each
	Draws       int // turns drawn from the buffer in a step; at most as many as it holds
	BatchSize   int // turns of an update; the last one of a step may have fewer
	Capacity    int // turns that the buffer holds
	Slots       int // episodes that are played at the same time; 0 = 1. It changes no result.
	MicroTokens int // tokens a forward pass may hold; 0 = a whole update
	Checkpoint  bool
	Seed        uint64

	LearningRate float64 // peak
	WeightDecay  float64 // of matrices; norms and biases have none
	MaxGradNorm  float64 // 0 = no clipping
	Schedule     string  // "constant", "linear" or "cosine", over the steps
	Warmup       float64 // share of the steps, or from 1 on a number of them

	Temperature float64 // above 0; divides the logits in training too
	MaxNew      int     // tokens of an action at most

	Gamma     float64 // discount of a turn
	ReturnMin float64 // discounted returns are clamped to [ReturnMin, ReturnMax]
	ReturnMax float64

	KLCoef  float64 // stable; 0 = there is no reference
	NLLCoef float64 // distiller; 0 = there is no reference
	// Reference is another policy with the same tokens for a reference; nil is the policy as it was at the start,
	// or as it was at the last multiple of ReferenceEvery steps.
	Reference      *TokenPolicy
	ReferenceEvery int // 0 = never

	LoadBuffer string // file to start the buffer with; "" = empty
	SaveBuffer string // file that the buffer is written to in each step; "" = none

	EvalEvery    int            // steps between evaluations; 0 = only before and after
	EvalSamples  int            // episodes of an evaluation; 0 = none, and the last weights are kept
	EvalMaxNew   int            // tokens of an action at most
	EvalSampling torch.Sampling // Temperature 0 = greedy
}

func (c TokenReplayConfig) check() error {
	switch {
	case c.Loss != ReplayReinforce && c.Loss != ReplayStable && c.Loss != ReplayDistiller:
		return fmt.Errorf("loss %q is unknown: choose %s", c.Loss, strings.Join([]string{ReplayReinforce, ReplayStable, ReplayDistiller}, ", "))
	case c.Steps < 1 || c.Episodes < 1 || c.Draws < 1 || c.BatchSize < 1 || c.MaxNew < 1:
		return fmt.Errorf("%d steps of %d episodes with at most %d tokens an action, %d turns drawn for updates of %d: each must be at least 1", c.Steps, c.Episodes, c.MaxNew, c.Draws, c.BatchSize)
	case !(c.Temperature > 0):
		return fmt.Errorf("temperature %v: samples to learn from need one above 0", c.Temperature)
	case !(c.Gamma >= 0 && c.Gamma <= 1):
		return fmt.Errorf("gamma %v: want one in [0,1]", c.Gamma)
	case !(c.ReturnMin <= c.ReturnMax):
		return fmt.Errorf("returns clamped to [%v, %v], which is empty", c.ReturnMin, c.ReturnMax)
	case !(c.KLCoef >= 0 && c.NLLCoef >= 0):
		return fmt.Errorf("coefficients %v and %v of the reference: must not be negative", c.KLCoef, c.NLLCoef)
	case c.ReferenceEvery < 0 || c.Reference != nil && c.ReferenceEvery > 0:
		return errors.New("another model for a reference stays as it is: it cannot become a copy of the policy")
	case c.EvalSamples > 0 && c.EvalMaxNew < 1:
		return fmt.Errorf("evaluations with at most %d tokens an action: must be at least 1", c.EvalMaxNew)
	}
	return nil
}

// refers says whether the loss reads a reference.
func (c TokenReplayConfig) refers() bool {
	return c.Loss == ReplayStable && c.KLCoef > 0 || c.Loss == ReplayDistiller && c.NLLCoef > 0
}
