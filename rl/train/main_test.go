package train_test

import (
	"testing"

	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }
