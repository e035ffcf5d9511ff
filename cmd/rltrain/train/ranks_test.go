package train

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
)

func TestSeveralProcessesDoNotTrainOnAGPU(t *testing.T) {
	c, err := config.Load([]string{"--task=sum_digits", "--device=cuda:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	environ := []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}
	err = (&trainer{config: c}).ranks(t.Context(), environ)
	if err == nil || !strings.Contains(err.Error(), "--device: cuda:1 applies to one process alone") {
		t.Errorf("got %v, want an error that names --device", err)
	}
}
