// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

const mib = 1 << 20

// cdiDevice is what an engine reads of a device.
type cdiDevice struct {
	Name           string `json:"name"`
	ContainerEdits struct {
		Env    []string `json:"env"`
		Mounts []struct {
			HostPath      string   `json:"hostPath"`
			ContainerPath string   `json:"containerPath"`
			Options       []string `json:"options"`
		} `json:"mounts"`
	} `json:"containerEdits"`
}

func (b *bed) cdiOf(id string) cdiDevice {
	b.t.Helper()
	for _, file := range b.cdiFiles() {
		var document struct {
			Kind    string      `json:"kind"`
			Devices []cdiDevice `json:"devices"`
		}
		text, err := os.ReadFile(file)
		if err != nil || json.Unmarshal(text, &document) != nil {
			b.t.Fatalf("%s: %v: %s", file, err, text)
		}
		for _, device := range document.Devices {
			if document.Kind+"="+device.Name == id {
				return device
			}
		}
	}
	b.t.Fatalf("no file in %v has %s", b.cdiFiles(), id)
	return cdiDevice{}
}

func (b *bed) capacity() int64 {
	slice := b.api.slices(b.t)[nodeName+"/main"]
	if len(slice.Devices) != 1 {
		return -1
	}
	value := slice.Devices[0].Capacity["memory"].Value
	return value.Value()
}

func (b *bed) wantLeases(count int) []lease {
	b.t.Helper()
	found := b.leases()
	if len(found) != count {
		b.t.Fatalf("%d leases, not %d: %v", len(found), count, found)
	}
	return found
}

func TestPoolsArePublished(t *testing.T) {
	b := newBed(t)
	eventually(t, "pool main is published", func() bool { return b.capacity() == 128*mib })
	slice := b.api.slices(t)[nodeName+"/main"]
	device := slice.Devices[0]
	if slice.Driver != "terrace.dev" || slice.NodeName == nil || *slice.NodeName != nodeName || device.Name != "memory" ||
		device.AllowMultipleAllocations == nil || !*device.AllowMultipleAllocations {
		t.Fatalf("published %+v", slice)
	}
	policy := device.Capacity["memory"].RequestPolicy
	if policy.ValidRange.Step.Value() != granule || policy.ValidRange.Min.Value() != granule {
		t.Fatalf("policy %+v", policy)
	}
	for name, want := range map[string]string{"pool": "main", "backend": "emulated", "tier": "cxl", "health": "Healthy"} {
		if got := device.Attributes[resourceapi.QualifiedName(name)].StringValue; got == nil || *got != want {
			t.Errorf("attribute %s: %v", name, got)
		}
	}
	// Memory that others have is not Kubernetes' to give, and neither is what a drain keeps back.
	b.terrace("lease", "grant", "--pool", "main", "--size", "16M", "--persistent", "--label", "others")
	eventually(t, "the capacity falls", func() bool { return b.capacity() == 112*mib })
	b.terrace("lease", "release", "others")
	eventually(t, "the capacity rises", func() bool { return b.capacity() == 128*mib })
	b.terrace("device", "drain", "emu:b")
	eventually(t, "a drained device is no capacity", func() bool { return b.capacity() == 64*mib })
	b.terrace("device", "undrain", "emu:b")
	eventually(t, "it is again", func() bool { return b.capacity() == 128*mib })
}

func TestPrepareAndUnprepare(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	// Unprepare before any prepare: nothing to do.
	c := b.newClaim("claim-1", 8*mib, map[string]any{"mode": "shared_coherent", "path": "/memory/model"})
	if err := k.unprepare(c); err != nil {
		t.Fatal(err)
	}
	first := k.mustPrepare(t, c)
	found := b.wantLeases(1)[0]
	if found.Bytes != 8*mib || found.Tenant != "kubernetes" || found.Mode != "shared_coherent" || !found.Persistent ||
		!strings.Contains(found.Label, c.uid) || !strings.HasSuffix(found.Label, ":default.claim-1") {
		t.Fatalf("lease %+v", found)
	}
	// What the container gets: a file of that size, which is the lease's memory.
	device := b.cdiOf(first)
	mount := device.ContainerEdits.Mounts[0]
	if mount.ContainerPath != "/memory/model" {
		t.Fatalf("mount %+v", mount)
	}
	if seen, err := os.Stat(mount.HostPath); err != nil || seen.Size() != 8*mib {
		t.Fatalf("%s: %v %v", mount.HostPath, seen, err)
	}
	if env := strings.Join(device.ContainerEdits.Env, " "); !strings.Contains(env, fmt.Sprint("TERRACE_LEASE_BYTES=", 8*mib)) {
		t.Fatalf("environment %s", env)
	}
	// Repeated, by the same kubelet, by a restarted one, by several at a time: the same.
	var wait sync.WaitGroup
	for range 5 {
		wait.Go(func() {
			if again := startKubelet(t, b.in("registry")).mustPrepare(t, c); again != first {
				t.Errorf("%s, and then %s", first, again)
			}
		})
	}
	wait.Wait()
	b.wantLeases(1)
	// The capacity is what claims can have in all, this one included.
	eventually(t, "the capacity stays", func() bool { return b.capacity() == 128*mib })
	for range 2 {
		if err := k.unprepare(c); err != nil {
			t.Fatal(err)
		}
		b.wantLeases(0)
		if files := b.cdiFiles(); len(files) != 0 {
			t.Fatalf("left: %v", files)
		}
	}
	// Prepared again, its name is another: an engine must not remember the old one's memory.
	if second := k.mustPrepare(t, c); second == first {
		t.Fatalf("%s names two leases", second)
	}
}

func TestRestarts(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	c := b.newClaim("claim-1", 4*mib, nil)
	first := k.mustPrepare(t, c)
	// The driver's kill -9, and another driver.
	b.killDriver()
	b.startDriver()
	k = startKubelet(t, b.in("registry"))
	if again := k.mustPrepare(t, c); again != first {
		t.Fatalf("%s, and then %s", first, again)
	}
	// The manager's.
	b.stop(b.terraced, syscall.SIGKILL)
	if _, err := k.prepare(b.newClaim("claim-2", 4*mib, nil)); err == nil || !strings.Contains(err.Error(), "terraced does not answer") {
		t.Fatalf("without a manager: %v", err)
	}
	if err := k.unprepare(c); err == nil || !strings.Contains(err.Error(), "terraced does not answer") {
		t.Fatalf("without a manager: %v", err)
	}
	eventually(t, "nobody is scheduled there", func() bool {
		slice := b.api.slices(t)[nodeName+"/main"]
		return len(slice.Devices) == 1 && len(slice.Devices[0].Taints) == 1 && slice.Devices[0].Taints[0].Key == "terrace.dev/manager-away"
	})
	b.startTerraced()
	eventually(t, "pods are scheduled there again", func() bool {
		slice := b.api.slices(t)[nodeName+"/main"]
		return len(slice.Devices) == 1 && len(slice.Devices[0].Taints) == 0
	})
	if again := k.mustPrepare(t, c); again != first {
		t.Fatalf("%s, and then %s", first, again)
	}
	if err := k.unprepare(c); err != nil {
		t.Fatal(err)
	}
	b.wantLeases(0)
}

// The driver is killed at any moment of a prepare or unprepare, and the manager now and then: afterwards each claim has one lease
// and one file, or none.
func TestKilledInTheMiddle(t *testing.T) {
	b := newBed(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	c := b.newClaim("claim-1", 4*mib, nil)
	for round := range 10 {
		k := startKubelet(t, b.in("registry"))
		done := make(chan bool)
		go func() {
			defer close(done)
			_, _ = k.prepare(c)
			if round%2 == 1 {
				_ = k.unprepare(c)
			}
		}()
		time.Sleep(time.Duration(random.Intn(400)) * time.Millisecond)
		b.killDriver()
		if round%4 == 3 {
			b.stop(b.terraced, syscall.SIGKILL)
			b.startTerraced()
		}
		<-done
		b.startDriver()
		k = startKubelet(t, b.in("registry"))
		if round%2 == 0 {
			k.mustPrepare(t, c)
			b.wantLeases(1)
			if files := b.cdiFiles(); len(files) != 1 {
				t.Fatalf("round %d: %v", round, files)
			}
			continue
		}
		if err := k.unprepare(c); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		b.wantLeases(0)
		eventually(t, "no file is left", func() bool { return len(b.cdiFiles()) == 0 })
	}
}

func TestLeasesWithoutAClaimAreReleased(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	gone, moved, used := b.newClaim("gone", 4*mib, nil), b.newClaim("moved", 4*mib, nil), b.newClaim("used", 4*mib, nil)
	for _, c := range []*claim{gone, moved, used} {
		k.mustPrepare(t, c)
	}
	// Another cluster's, or another node's, at the same manager.
	b.terrace("lease", "grant", "--pool", "main", "--size", "2M", "--persistent", "--tenant", "kubernetes", "--label",
		"k8s:00000000:"+gone.uid+":00000000:default.gone")
	b.killDriver()
	b.api.remove(gone.path())
	b.api.setRefused("/apis/resource.k8s.io/v1/resourceclaims", true)
	other := *moved
	*moved = *b.newClaim("moved", 4*mib, nil)
	b.startDriver()
	// While the API server does not answer, nothing is concluded from that.
	time.Sleep(4 * time.Second)
	b.wantLeases(4)
	b.api.setRefused("/apis/resource.k8s.io/v1/resourceclaims", false)
	eventually(t, "what has no claim is released", func() bool { return len(b.leases()) == 2 })
	for _, one := range b.leases() {
		if strings.Contains(one.Label, other.uid) || strings.Contains(one.Label, gone.uid) && !strings.Contains(one.Label, ":00000000:") {
			t.Fatalf("released the wrong one: %v", b.leases())
		}
	}
	if files := b.cdiFiles(); len(files) != 1 {
		t.Fatalf("files: %v", files)
	}
	time.Sleep(3 * time.Second) // some looks later those that are in use are there still
	b.wantLeases(2)
}

func TestHealthAndNotices(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	c := b.newClaim("claim-1", 4*mib, nil)
	k.mustPrepare(t, c)
	health := k.health(t)
	eventually(t, "the pool is healthy", func() bool { return health().Health == healthv1.HealthStatus_HEALTHY })
	if device := health().Device; device.PoolName != nodeName+"/main" || device.DeviceName != "memory" {
		t.Fatalf("health of %v", device)
	}
	b.terrace("device", "drain", "emu:b")
	eventually(t, "a drain is told", func() bool { return strings.Contains(health().Message, "emu:b") })
	if health().Health != healthv1.HealthStatus_HEALTHY {
		t.Fatalf("a drain is no loss: %v", health())
	}
	b.terrace("device", "undrain", "emu:b")
	eventually(t, "the lease is known", func() bool { return b.capacity() == 128*mib })
	b.terrace("lease", "revoke", fmt.Sprint(b.wantLeases(1)[0].ID), "--grace", "1s", "--reason", "needed elsewhere")
	eventually(t, "the revoke is told", func() bool { return strings.Contains(health().Message, "default/claim-1") })
	eventually(t, "the claim has an event", func() bool {
		for _, event := range b.api.with("/namespaces/default/events/") {
			if event["reason"] == "LeaseRevoked" && event["involvedObject"].(map[string]any)["uid"] == c.uid {
				return true
			}
		}
		return false
	})
	eventually(t, "and a condition", func() bool {
		text, _ := json.Marshal(b.api.with("/resourceclaims/claim-1"))
		return strings.Contains(string(text), `"reason":"LeaseRevoked"`) && strings.Contains(string(text), c.share)
	})
	b.terrace("device", "fail", "emu:a", "--yes")
	eventually(t, "a failed device is unhealthy", func() bool { return health().Health == healthv1.HealthStatus_UNHEALTHY })
	b.stop(b.terraced, syscall.SIGKILL)
	eventually(t, "without a manager nothing is known", func() bool { return health().Health == healthv1.HealthStatus_UNKNOWN })
}

func TestWhatCannotBe(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	for name, one := range map[string]struct {
		parameters map[string]any
		bytes      uint64
		want       string
	}{
		"mode":     {map[string]any{"mode": "shared"}, mib, "exclusive, shared_coherent, shared_read_only"},
		"ttl":      {map[string]any{"ttl": "1s"}, mib, "5m"},
		"movable":  {map[string]any{"movable": true}, mib, "movable"},
		"path":     {map[string]any{"path": "/etc"}, mib, "absolute path"},
		"key":      {map[string]any{"size": "1G"}, mib, "unknown field"},
		"user":     {map[string]any{"user": -1}, mib, "uid"},
		"too-much": {nil, 256 * mib, "capacity_exhausted"},
	} {
		c := b.newClaim(name, one.bytes, one.parameters)
		if _, err := k.prepare(c); err == nil || !strings.Contains(err.Error(), one.want) || !strings.Contains(err.Error(), "default/"+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.wantLeases(0)
	// A full pool: the kubelet tries again, and has it when there is room.
	b.terrace("lease", "grant", "--pool", "main", "--size", "128M", "--persistent", "--label", "others")
	c := b.newClaim("waits", 8*mib, nil)
	if _, err := k.prepare(c); err == nil || !strings.Contains(err.Error(), "capacity_exhausted") {
		t.Fatalf("full: %v", err)
	}
	b.terrace("lease", "release", "others")
	eventually(t, "there is room", func() bool { _, err := k.prepare(c); return err == nil })
	// After a revoke the claim's memory is another lease's, under another name; the old description goes.
	before := k.mustPrepare(t, c)
	b.terrace("lease", "revoke", fmt.Sprint(b.wantLeases(1)[0].ID), "--reason", "needed elsewhere")
	eventually(t, "it is fenced", func() bool { return len(b.leases()) == 0 })
	if after := k.mustPrepare(t, c); after == before {
		t.Fatalf("%s names two leases", after)
	}
	eventually(t, "one description is left", func() bool { return len(b.cdiFiles()) == 1 })
	if err := k.unprepare(c); err != nil {
		t.Fatal(err)
	}
}

// A lease with a TTL lives on while the driver does.
func TestTTLIsRenewed(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	c := b.newClaim("claim-1", 4*mib, map[string]any{"ttl": "5m", "readOnly": true, "mode": "shared_read_only", "user": 1234})
	device := k.mustPrepare(t, c)
	found := b.wantLeases(1)[0]
	if found.Persistent || found.Mode != "shared_read_only" {
		t.Fatalf("lease %+v", found)
	}
	if options := strings.Join(b.cdiOf(device).ContainerEdits.Mounts[0].Options, ","); !strings.Contains(options, "ro") {
		t.Fatalf("options %s", options)
	}
	// Shortened, so that it would end during this test.
	b.terrace("lease", "renew", fmt.Sprint(found.ID), "--ttl", "20s")
	time.Sleep(25 * time.Second)
	if again := b.wantLeases(1)[0]; again.ID != found.ID {
		t.Fatalf("lease %+v", again)
	}
}
