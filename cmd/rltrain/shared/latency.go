package shared

import (
	"context"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
)

// latencyTexts are measured one at a time, after a few that warm caches.
const (
	latencyTexts  = 200
	latencyWarmup = 5
)

// MeasureLatency is the time of predictions of one text each, in milliseconds.
func MeasureLatency(ctx context.Context, p *policy.Classifier, ids [][]int32) ([]float64, error) {
	var ms []float64
	for i := range min(len(ids), latencyTexts) + latencyWarmup {
		began := time.Now()
		if _, err := p.Probs(ctx, ids[i%len(ids):][:1]); err != nil {
			return nil, err
		}
		if i >= latencyWarmup {
			ms = append(ms, float64(time.Since(began).Microseconds())/1000)
		}
	}
	return ms, nil
}
