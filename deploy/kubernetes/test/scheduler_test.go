// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/yaml"
)

// scheduler is what kube-scheduler allocates claims with: its code, on what the driver has published. It remembers what it gave.
type scheduler struct {
	b     *bed
	class *resourceapi.DeviceClass
	given structured.AllocatedState
	cache *cel.Cache
}

// object reads the object of that kind in a file of this tree.
func object(t *testing.T, file, kind string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range strings.Split(string(text), "\n---\n") {
		if strings.Contains(document, "\nkind: "+kind+"\n") {
			if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s has no %s", file, kind)
}

func newScheduler(b *bed) *scheduler {
	class := &resourceapi.DeviceClass{}
	object(b.t, "../manifests/terrace-dra.yaml", "DeviceClass", class)
	return &scheduler{b: b, class: class, cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}),
		given: structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}}
}

func (s *scheduler) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{s.class}, nil
}
func (s *scheduler) Get(string) (*resourceapi.DeviceClass, error) { return s.class, nil }

// allocate puts the allocated claim into the API server; nil: no device of that node has room, or is wanted.
func (s *scheduler) allocate(node string, asked *resourceapi.ResourceClaim) *claim {
	t := s.b.t
	t.Helper()
	var slices []*resourceapi.ResourceSlice
	for _, one := range s.b.api.with(slicesPath + "/") {
		slice := &resourceapi.ResourceSlice{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(one, slice); err != nil {
			t.Fatal(err)
		}
		slices = append(slices, slice)
	}
	asked.Namespace, asked.UID = "default", uuid.NewUUID()
	features := structured.Features{ConsumableCapacity: true, DeviceTaints: true}
	allocator, err := structured.NewAllocator(context.Background(), features, s.given, s, slices, s.cache)
	if err != nil {
		t.Fatal(err)
	}
	got, err := allocator.Allocate(context.Background(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, []*resourceapi.ResourceClaim{asked})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) == 0 {
		return nil
	}
	result := got[0].Devices.Results[0]
	device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
	s.given.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
	s.given.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
	asked.Status.Allocation = &got[0]
	asked.TypeMeta = metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}
	stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(asked)
	if err != nil {
		t.Fatal(err)
	}
	c := &claim{namespace: "default", name: asked.Name, uid: string(asked.UID), share: string(*result.ShareID)}
	s.b.api.put(c.path(), stored)
	return c
}

func asking(name, size string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "terrace.dev", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
	if size != "" {
		exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(size)}}
	}
	return &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "mem", Exactly: exactly}}}}}
}

func TestTheSchedulerCountsAsTheManager(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	eventually(t, "pool main is published", func() bool { return b.capacity() == 128*mib })
	s := newScheduler(b)
	first := s.allocate(nodeName, asking("first", "5Mi"))
	if first == nil {
		t.Fatal("5 of 128 MiB are not allocated")
	}
	k.mustPrepare(t, first)
	if got := b.leaseOf(first).Bytes; got != 6*mib {
		t.Fatalf("5 MiB are %d in granules of 2 MiB", got)
	}
	second := s.allocate(nodeName, asking("second", "100Mi"))
	if second == nil {
		t.Fatal("100 of 122 MiB are not allocated")
	}
	k.mustPrepare(t, second)
	if b.leaseOf(second).Bytes != 100*mib || b.leaseOf(first).ID == b.leaseOf(second).ID {
		t.Fatalf("leases %v", b.leases())
	}
	// What the driver publishes now has to leave as much room as there is: 22 MiB.
	eventually(t, "the capacity counts claims' leases in", func() bool { return b.capacity() == 128*mib })
	if s.allocate(nodeName, asking("third", "23Mi")) != nil {
		t.Fatal("23 MiB rounded to 24 of 22 MiB were allocated")
	}
	fourth := s.allocate(nodeName, asking("fourth", "22Mi"))
	if fourth == nil {
		t.Fatal("22 of 22 MiB are not allocated")
	}
	k.mustPrepare(t, fourth)
	if s.allocate(nodeName, asking("fifth", "1Mi")) != nil {
		t.Fatal("a full pool was allocated")
	}
	if s.allocate("node-b", asking("elsewhere", "2Mi")) != nil {
		t.Fatal("allocated to a node that has no pool")
	}
}

func TestWhatTheSchedulerIsTold(t *testing.T) {
	b := newBed(t)
	k := startKubelet(t, b.in("registry"))
	eventually(t, "pool main is published", func() bool { return b.capacity() == 128*mib })
	s := newScheduler(b)
	// The example's selectors and parameters, of a smaller size.
	example := &resourceapi.ResourceClaim{}
	object(t, "../examples/shared-claim.yaml", "ResourceClaim", example)
	request := example.Spec.Devices.Requests[0].Exactly
	request.Capacity.Requests["memory"], request.AllocationMode, request.Count = resource.MustParse("8Mi"), resourceapi.DeviceAllocationModeExactCount, 1
	shared := s.allocate(nodeName, example)
	if shared == nil {
		t.Fatal("the example's selector finds no device")
	}
	device := k.mustPrepare(t, shared)
	if found := b.leaseOf(shared); found.Mode != "shared_coherent" || b.cdiOf(device).ContainerEdits.Mounts[0].ContainerPath != "/memory/weights" {
		t.Fatalf("%+v", found)
	}
	// A claim without a size gets the API's default, which nobody means.
	silent := s.allocate(nodeName, asking("silent", ""))
	if silent == nil {
		t.Fatal("not allocated")
	}
	if _, err := k.prepare(silent); err == nil || !strings.Contains(err.Error(), "does not say how much") {
		t.Fatalf("without a size: %v", err)
	}
	other := asking("other", "2Mi")
	other.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["terrace.dev"].backend == "devdax"`}}}
	if s.allocate(nodeName, other) != nil {
		t.Fatal("a selector for dax devices chose emulated ones")
	}
	// Without a manager its pools are tainted.
	b.stop(b.terraced, syscall.SIGKILL)
	eventually(t, "the device is tainted", func() bool {
		slice := b.api.slices(t)[nodeName+"/main"]
		return len(slice.Devices) == 1 && len(slice.Devices[0].Taints) == 1
	})
	if s.allocate(nodeName, asking("away", "2Mi")) != nil {
		t.Fatal("allocated where no manager answers")
	}
}
