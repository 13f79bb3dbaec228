"""Every address, one name through all layers."""

from django.urls import URLPattern, path

from fleet.views import search, sign_in

handler400 = "fleet.views.errors.bad_request"
handler403 = "fleet.views.errors.forbidden"
handler404 = "fleet.views.errors.not_found"
handler500 = "fleet.views.errors.server_error"

urlpatterns: list[URLPattern] = [
    path("sign-in/", sign_in.sign_in, name="sign-in"),
    path("sign-out/", sign_in.sign_out, name="sign-out"),
    path("search", search.search, name="search"),
]
