package tinker

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
)

// TestGradientOfAverages: where a service averages, the gradient is that of a sum nevertheless. SkyRL's loss of an example is the
// mean of −ρ·A over its targets, the loss of all the mean over the examples.
func TestGradientOfAverages(t *testing.T) {
	slopes := [][]float32{{0.5, -2, 0}, {1}}
	now := [][]float32{{-1, -2, -3}, {-4}}
	examples := make([]example, 2)
	m := &model{averages: true}
	expect.Same(t, "importance_sampling", m.weigh(examples, slopes, now), "loss")
	for i, e := range examples {
		for j, a := range e.inputs["advantages"] {
			ratio := math.Exp(float64(now[i][j] - e.inputs["logprobs"][j]))
			got := -ratio * float64(a) / float64(len(slopes[i])) / float64(len(examples))
			expect.True(t, math.Abs(got-float64(slopes[i][j])) < 1e-6, "gradient %g of target %d, want %g", got, j, slopes[i][j])
		}
	}
}

// TestMeasureSums: two copies of an example with twice the weights have 4 times the gradient where a service adds, and the same
// where it averages.
func TestMeasureSums(t *testing.T) {
	for _, x := range []struct {
		norms    []string
		averages bool
		want     string
	}{
		{[]string{`{"grad_norm":0.5}`, `{"x/grad_norm":2}`}, false, ""}, {[]string{`{"grad_norm":0.5}`, `{"grad_norm":0.501}`}, true, ""},
		{[]string{`{"grad_norm":0.5}`, `{"grad_norm":1}`}, false, "norm 0.5, that of twice two of them 1"}, {[]string{`{}`, `{}`}, false, "NaN"},
	} {
		steps, gradients, rates := 0, 0, []any{}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body map[string]any
			must.Do(t, json.NewDecoder(r.Body).Decode(&body))
			switch {
			case body["request_id"] == "optim_step":
				steps++
				_, _ = fmt.Fprintf(w, `{"metrics":%s}`, x.norms[steps-1])
			case body["type"] == nil:
				gradients++
				_, _ = w.Write([]byte("{}"))
			case body["type"] == "optim_step":
				expect.Same(t, steps+1, gradients, "gradients before a step")
				rates = append(rates, body["adam_params"].(map[string]any)["learning_rate"])
				fallthrough
			default:
				_, _ = fmt.Fprintf(w, `{"request_id":%q}`, body["type"])
			}
		}))
		m := &model{service: &service{url: server.URL, client: server.Client()}}
		err := m.measureSums(t.Context(), example{tokens: []int32{1, 2}, targets: []int32{2, 3}})
		server.Close()
		expect.Same(t, x.averages, m.averages, "averages")
		expect.Equal(t, []any{0.0, 0.0}, rates)
		if x.want != "" {
			expect.Error(t, err, x.want)
		} else {
			must.Do(t, err)
		}
	}
}

// TestLayOut: every action has its place among the targets, and nothing follows the last one.
func TestLayOut(t *testing.T) {
	samples := []*rl.Sample{
		{Tokens: []int32{1, 2, 3, 4}, Rows: []int{1, 2}, Actions: []int32{3, 9}},
		{Tokens: []int32{5, 6}, Rows: []int{0, 0, 1}, Actions: []int32{7, 8, 9}}, // two actions after one token
	}
	examples, places := layOut(rl.NewBatch(samples))
	unexported := cmp.AllowUnexported(example{}, place{})
	diff := cmp.Diff([]example{
		{tokens: []int32{1, 2, 3}, targets: []int32{2, 3, 9}, mask: []float32{0, 1, 1}},
		{tokens: []int32{5, 6}, targets: []int32{7, 9}, mask: []float32{1, 1}}, {tokens: []int32{5}, targets: []int32{8}, mask: []float32{1}},
	}, examples, unexported)
	expect.True(t, diff == "", "examples: %s", diff)
	diff = cmp.Diff([]place{{0, 1}, {0, 2}, {1, 0}, {2, 0}, {1, 1}}, places, unexported)
	expect.True(t, diff == "", "places: %s", diff)
}

// TestRequests: no request has too many examples or tokens, and none is lost.
func TestRequests(t *testing.T) {
	var examples []example
	for i := range 3 * mostExamples {
		examples = append(examples, example{tokens: make([]int32, 1+i%700)})
	}
	n := 0
	for _, part := range requests(examples) {
		tokens := 0
		for _, e := range part {
			tokens += len(e.tokens)
		}
		n += len(part)
		expect.True(t, len(part) <= mostExamples && tokens <= mostTokens && len(part) > 0, "a request of %d examples, %d tokens", len(part), tokens)
	}
	expect.Same(t, len(examples), n, "examples")
}

// An archive that says that it is larger than memory and disks is refused before a byte of it is written.
func TestUnpackRefusesGiants(t *testing.T) {
	var data bytes.Buffer
	must.Do(t, tar.NewWriter(&data).WriteHeader(&tar.Header{Name: lora.WeightsFile, Typeflag: tar.TypeReg, Size: 1 << 40, Mode: 0o644}))
	dir := t.TempDir()
	expect.Error(t, unpack(&data, dir), lora.WeightsFile, "1099511627776")
	expect.Equal(t, 0, len(must.Get(os.ReadDir(dir))(t)))
}

// FuzzUnpack reads archives of anything.
func FuzzUnpack(f *testing.F) {
	var plain, packed bytes.Buffer
	archive := tar.NewWriter(&plain)
	for _, name := range []string{"./adapter_config.json", "a/adapter_model.safetensors"} {
		must.Do(f, archive.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 2, Mode: 0o644}))
		must.Get(archive.Write([]byte("{}")))(f)
	}
	must.Do(f, archive.Close())
	zipped := gzip.NewWriter(&packed)
	must.Get(zipped.Write(plain.Bytes()))(f)
	must.Do(f, zipped.Close())
	must.Do(f, unpack(bytes.NewReader(plain.Bytes()), f.TempDir()))
	must.Do(f, unpack(bytes.NewReader(packed.Bytes()), f.TempDir()))
	f.Add(plain.Bytes())
	f.Add(packed.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := unpack(bytes.NewReader(data), t.TempDir()); err != nil {
			expect.True(t, strings.HasPrefix(err.Error(), "the archive of the adapter: "), "error %v", err)
		}
	})
}
