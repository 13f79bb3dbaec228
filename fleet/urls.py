"""Every address, one name through all layers."""

from django.urls import URLPattern, path

from fleet.views import search

urlpatterns: list[URLPattern] = [
    path("search", search.search, name="search"),
]
