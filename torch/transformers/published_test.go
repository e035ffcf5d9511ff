package transformers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestPublishedModels: configurations of published models, with their fields as they stand on the hub, are read, and have as
// many parameters as their pages say.
func TestPublishedModels(t *testing.T) {
	var models map[string]struct {
		Parameters int64
		Config     json.RawMessage
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join("testdata", "published.json")))(t), &models))
	expect.True(t, len(models) >= 12, "%d models", len(models))
	for name, m := range models {
		t.Run(name, func(t *testing.T) {
			c := must.Get(parseConfig(m.Config, decoders))(t)
			n := int64(0)
			for _, spec := range c.TensorNames() {
				if spec.Group != "tied" {
					n += spec.elements()
				}
			}
			expect.Same(t, m.Parameters, n, "parameters")
		})
	}
}
